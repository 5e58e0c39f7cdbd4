#include "comm/collectives/program_run.h"

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/collectives/recipe.h"
#include "comm/group.h"
#include "comm/reduction/reference.h"
#include "comm/transport/sim/sim_fabric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kManyTurns = 2'000'000;

Program MakeProgram(const std::string& recipe, const ProgramShape& shape) {
  const auto entry = RecipeRegistry::Get().Find(recipe);
  EXPECT_TRUE(entry.ok()) << entry.status();
  return entry->factory.make(shape);
}

// Takes `limit` operations at a time.
class NarrowRunner final : public OperationRunner {
 public:
  NarrowRunner(OperationRunner& runner, size_t limit) : runner_(runner), limit_(limit) {}

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    std::erase_if(in_flight_, [&](Completion c) { return runner_.Query(c).done; });
    most_ = std::max(most_, in_flight_.size() + 1);
    if (in_flight_.size() >= limit_) return absl::ResourceExhaustedError("narrow");
    absl::StatusOr<Completion> completion = runner_.Launch(operation, stream);
    if (completion.ok()) in_flight_.push_back(*completion);
    return completion;
  }
  bool Progress() override { return runner_.Progress(); }
  State Query(Completion completion) override { return runner_.Query(completion); }
  void Park(absl::Time until) override { runner_.Park(until); }
  void Wake() override { runner_.Wake(); }
  void Abort(const absl::Status& reason) override { runner_.Abort(reason); }
  std::vector<Rank> Missing() const override { return runner_.Missing(); }

  size_t most() const { return most_; }

 private:
  OperationRunner& runner_;
  const size_t limit_;
  std::vector<Completion> in_flight_;
  size_t most_ = 0;
};

// All ranks in one thread, each with a run of its own.
struct World {
  explicit World(int32_t n, size_t limit = 256)
      : fabric(WorldSize(n)), group(Group::World(WorldSize(n))) {
    auto opened = fabric.OpenAll(CommunicatorId(1), group);
    EXPECT_TRUE(opened.ok()) << opened.status();
    communicators = *std::move(opened);
    for (auto& communicator : communicators) {
      runners.push_back(std::make_unique<NarrowRunner>(*communicator, limit));
      runs.push_back(std::make_unique<ProgramRun>(*runners.back()));
    }
  }

  // Until all of `ranks` are done or have failed; their statuses.
  std::vector<absl::Status> Drive(const std::vector<size_t>& ranks) {
    std::vector<absl::Status> statuses(ranks.size());
    std::vector<bool> is_over(ranks.size());
    for (int turn = 0; turn < kManyTurns; ++turn) {
      bool all_over = true;
      for (size_t i = 0; i < ranks.size(); ++i) {
        communicators[ranks[i]]->Progress();
        if (is_over[i]) continue;
        const absl::StatusOr<bool> done = runs[ranks[i]]->Advance();
        statuses[i] = done.status();
        is_over[i] = !done.ok() || *done;
        all_over = all_over && is_over[i];
      }
      if (all_over) return statuses;
    }
    ADD_FAILURE() << "not over after " << kManyTurns << " turns";
    return statuses;
  }
  std::vector<absl::Status> DriveAll() {
    std::vector<size_t> ranks(runs.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return Drive(ranks);
  }

  SimFabric fabric;
  Group group;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::unique_ptr<NarrowRunner>> runners;
  std::vector<std::unique_ptr<ProgramRun>> runs;
};

// An allreduce of float32 by `recipe` among all ranks of `world`, checked.
void ExpectSum(World& world, const std::string& recipe, uint64_t count, ReduceOp op,
               int32_t divisor) {
  const size_t n = world.runs.size();
  std::vector<std::vector<float>> values(n, std::vector<float>(count));
  std::vector<float> expected(count);
  for (size_t r = 0; r < n; ++r) {
    for (uint64_t i = 0; i < count; ++i) {
      values[r][i] = static_cast<float>((r + 1) * (i % 1000));
      expected[i] += values[r][i];
    }
  }
  if (op == ReduceOp::kAvg && divisor > 0) {
    for (float& value : expected) value /= static_cast<float>(divisor);
  }
  std::vector<Program> programs;
  for (size_t r = 0; r < n; ++r) {
    programs.push_back(MakeProgram(recipe, {.rank = static_cast<int32_t>(r),
                                            .world_size = static_cast<int32_t>(n),
                                            .count = count,
                                            .reduce_op = op}));
  }
  for (size_t r = 0; r < n; ++r) {
    auto* const memory = reinterpret_cast<std::byte*>(values[r].data());
    const uint64_t sent_before = world.runs[r]->sent_bytes();
    ASSERT_EQ(world.runs[r]->Start(programs[r], {.source = memory,
                                                 .target = memory,
                                                 .reduce_op = op,
                                                 .divisor = divisor,
                                                 .peers = world.group.members,
                                                 .tag = kFirstProgramTag}),
              absl::OkStatus());
    EXPECT_EQ(world.runs[r]->sent_bytes(), sent_before);
  }
  std::vector<uint64_t> sent_before;
  for (auto& run : world.runs) sent_before.push_back(run->sent_bytes());
  for (const absl::Status& status : world.DriveAll()) EXPECT_EQ(status, absl::OkStatus());
  for (size_t r = 0; r < n; ++r) {
    EXPECT_EQ(values[r], expected) << recipe << ", rank " << r;
    EXPECT_EQ(world.runs[r]->sent_bytes() - sent_before[r], SentCount(programs[r]) * sizeof(float));
  }
}

TEST(ProgramRunTest, RunsOneProgramAfterTheOther) {
  World world(4);
  for (const char* recipe : {"pairwise", "ring", "halving_doubling", "direct", "ring"}) {
    ExpectSum(world, recipe, 1001, ReduceOp::kSum, 4);
  }
}

TEST(ProgramRunTest, RunsStrandsOfLargeTensors) {
  World world(3);
  for (const char* recipe : {"pairwise", "ring", "halving_doubling"}) {
    ExpectSum(world, recipe, 700'001, ReduceOp::kSum, 3);
  }
}

TEST(ProgramRunTest, DividesByTheDivisor) {
  World world(2);
  for (int32_t divisor : {0, 2, 5}) ExpectSum(world, "ring", 100, ReduceOp::kAvg, divisor);
}

// A send and a receive at a time are enough; launches that are refused are tried again.
TEST(ProgramRunTest, ARunnerThatTakesFewOperationsIsNoDeadlock) {
  World world(5, 2);
  for (const char* recipe : {"pairwise", "ring", "halving_doubling"}) {
    ExpectSum(world, recipe, 1'000'001, ReduceOp::kSum, 5);
  }
  for (const auto& runner : world.runners) EXPECT_GT(runner->most(), 2u);
}

TEST(ProgramRunTest, RunsAmongSomeOfTheRunnersRanks) {
  World world(4);
  const std::vector<Rank> peers = {Rank(3), Rank(1)};
  std::vector<float> three = {3}, one = {1};
  const Program first = MakeProgram("ring", {.rank = 0, .world_size = 2, .count = 1});
  const Program second = MakeProgram("ring", {.rank = 1, .world_size = 2, .count = 1});
  auto binding = [&](std::vector<float>& values) {
    auto* const memory = reinterpret_cast<std::byte*>(values.data());
    return ProgramBinding{.source = memory, .target = memory, .peers = peers, .tag = -7};
  };
  ASSERT_EQ(world.runs[3]->Start(first, binding(three)), absl::OkStatus());
  ASSERT_EQ(world.runs[1]->Start(second, binding(one)), absl::OkStatus());
  EXPECT_THAT(world.Drive({1, 3}), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_THAT(three, ElementsAre(4));
  EXPECT_THAT(one, ElementsAre(4));
}

TEST(ProgramRunTest, NamesTheRanksThatItWaitsFor) {
  World world(3);
  std::vector<float> value = {1};
  auto* const memory = reinterpret_cast<std::byte*>(value.data());
  const Program program = MakeProgram("direct", {.rank = 1, .world_size = 3, .count = 1});
  EXPECT_THAT(world.runs[1]->Awaited(), ElementsAre());
  ASSERT_EQ(world.runs[1]->Start(
                program, {.source = memory, .target = memory, .peers = world.group.members}),
            absl::OkStatus());
  const absl::StatusOr<bool> done = world.runs[1]->Advance();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_FALSE(*done);
  EXPECT_TRUE(world.runs[1]->moved());
  EXPECT_THAT(world.runs[1]->Awaited(), ElementsAre(Rank(0), Rank(2)));
  world.communicators[1]->Abort(absl::CancelledError("enough"));
}

TEST(ProgramRunTest, RanksThatRunDifferentCollectivesNotice) {
  World world(2);
  std::vector<float> values[2] = {{1, 2}, {3, 4}};
  std::vector<Program> programs;
  for (int32_t r = 0; r < 2; ++r) {
    programs.push_back(MakeProgram("direct", {.rank = r, .world_size = 2, .count = 2}));
  }
  for (size_t r = 0; r < 2; ++r) {
    auto* const memory = reinterpret_cast<std::byte*>(values[r].data());
    ASSERT_EQ(
        world.runs[r]->Start(programs[r], {.source = memory,
                                           .target = memory,
                                           .reduce_op = r == 0 ? ReduceOp::kSum : ReduceOp::kMax,
                                           .peers = world.group.members}),
        absl::OkStatus());
  }
  for (const absl::Status& status : world.DriveAll()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("op is"));
  }
  EXPECT_EQ(world.runs[0]->Advance().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world.runs[0]->Start(programs[0], {}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pelton
