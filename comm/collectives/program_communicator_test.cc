// What the conformance suite leaves open: random worlds in virtual time, limits, reserved tags.
#include "comm/collectives/program_communicator.h"

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "comm/collectives/test_program_transport.h"
#include "comm/transport/conformance/rank_exchange.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/sim_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using conformance::Exchange;
using conformance::ExchangeSpec;
using conformance::RankExchange;
using ::testing::HasSubstr;

// Threads: the test's. Owns: nothing.
class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::FromUnixSeconds(1'000'000);
};

// All ranks in one thread and in virtual time.
struct World {
  World(int32_t n, const LinkModel& link, uint64_t seed,
        const SelectionTable& table = SelectionTable::Default())
      : fabric(WorldSize(n), SimOptions{link, seed, &clock}) {
    auto opened = fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(n)));
    EXPECT_TRUE(opened.ok()) << opened.status();
    for (auto& wire : *opened) {
      ranks.push_back(
          MakeProgramCommunicator(std::make_unique<MessagesOnly>(std::move(wire)), table));
    }
  }

  // Until nothing moves any more.
  void Settle() {
    while (true) {
      bool moved = false;
      for (auto& rank : ranks) moved |= rank != nullptr && rank->Progress();
      if (moved) continue;
      if (fabric.NextEventTime() == absl::InfiniteFuture()) return;
      clock.now = std::max(clock.now, fabric.NextEventTime());
      fabric.RunDue(clock.now);
    }
  }

  FakeClock clock;
  SimFabric fabric;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

// A table whose rows take any recipe for any size.
SelectionTable RandomTable(std::mt19937_64& random) {
  std::string rows;
  const auto recipes = RecipeRegistry::Get().List();
  for (const char* kind :
       {"allreduce", "reduce", "reduce_scatter", "allgather", "broadcast", "gather", "scatter"}) {
    for (int i = 0; i < 3; ++i) {
      absl::StrAppend(&rows, kind, " ", random() % 9, " ", random() % 5000, " ",
                      recipes[random() % recipes.size()].name, "\n");
    }
  }
  const auto table = SelectionTable::Parse(rows);
  EXPECT_TRUE(table.ok()) << table.status();
  return *table;
}

ExchangeSpec RandomSpec(int32_t n, std::mt19937_64& random) {
  auto below = [&random](uint64_t bound) { return random() % bound; };
  const auto& kinds = conformance::DataKinds();
  ExchangeSpec spec;
  spec.kind = kinds[below(n > 1 ? kinds.size() : kinds.size() - 1)];  // the last one is a send
  spec.dtype = static_cast<DType>(below(kDTypeCount));
  const std::vector<ReduceOp> ops = conformance::OpsOf(spec.dtype);
  spec.op = ops[below(ops.size())];
  spec.root = static_cast<int32_t>(below(static_cast<uint64_t>(n)));
  spec.step = n > 1 ? 1 + static_cast<int32_t>(below(static_cast<uint64_t>(n - 1))) : 0;
  spec.count = below(6) == 0 ? below(300) : below(30);
  spec.in_place = conformance::HasInPlaceForm(spec.kind) && below(2) == 0;
  spec.placement = conformance::Placement::kPrivate;
  spec.seed = random();
  return spec;
}

void RunRandomWorld(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto n = static_cast<int32_t>(1 + random() % 9);
  const LinkModel link{absl::Microseconds(static_cast<int64_t>(random() % 50)),
                       random() % 2 == 0 ? 0 : 1e8,
                       absl::Microseconds(static_cast<int64_t>(random() % 500))};
  const SelectionTable table = random() % 2 == 0 ? SelectionTable::Default() : RandomTable(random);
  World world(n, link, seed, table);
  std::vector<Exchange> exchanges;
  for (uint64_t length = 1 + random() % 8; length > 0; --length) {
    exchanges.push_back(conformance::MakeExchange(RandomSpec(n, random), WorldSize(n)));
  }
  std::vector<std::unique_ptr<conformance::RankMemory>> memories;
  std::vector<std::vector<RankExchange>> parts(static_cast<size_t>(n));
  for (size_t r = 0; r < parts.size(); ++r) {
    memories.push_back(std::make_unique<conformance::RankMemory>(size_t{1} << 20));
    for (const Exchange& exchange : exchanges) {
      parts[r].emplace_back(exchange, Rank(static_cast<int32_t>(r)), *memories[r]);
      ASSERT_EQ(parts[r].back().Launch(*world.ranks[r]), absl::OkStatus());
      if (random() % 4 == 0) world.Settle();  // the others come later
    }
  }
  world.Settle();
  for (size_t r = 0; r < parts.size(); ++r) {
    for (size_t i = 0; i < exchanges.size(); ++i) {
      for (Completion completion : parts[r][i].completions()) {
        const OperationRunner::State state = world.ranks[r]->Query(completion);
        ASSERT_TRUE(state.done) << "rank " << r << ": " << Describe(exchanges[i].spec);
        ASSERT_EQ(state.status, absl::OkStatus()) << "rank " << r;
      }
      ASSERT_EQ(parts[r][i].Check(false), "") << "rank " << r << " of " << n;
    }
    EXPECT_EQ(memories[r]->own.CheckGuards(), "");
  }
}

TEST(ProgramCommunicatorTest, RandomWorldsGiveTheReferenceInVirtualTime) {
  ForEachSeed(300, RunRandomWorld);
}

TEST(ProgramCommunicatorTest, UnmatchedMessagesLeaveRoomForCollectives) {
  World world(2, {}, 0);
  std::vector<float> values(2, 1);
  const Tensor one{values.data(), 1, DType::kFloat32};
  absl::Status refused;
  size_t launched = 0;
  while (refused.ok()) {
    refused = Recv(*world.ranks[0], one, Rank(1), 77).status();
    launched += refused.ok();
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(launched, 128u);
  std::vector<Completion> barriers;
  for (auto& rank : world.ranks) {
    const auto completion = Barrier(*rank);
    ASSERT_TRUE(completion.ok()) << completion.status();
    barriers.push_back(*completion);
  }
  world.Settle();
  for (size_t r = 0; r < 2; ++r) EXPECT_TRUE(world.ranks[r]->Query(barriers[r]).done);
}

TEST(ProgramCommunicatorTest, TagsOfCollectivesAreRefused) {
  World world(2, {}, 0);
  float value = 1;
  const Tensor tensor{&value, 1, DType::kFloat32};
  const absl::Status status = Send(*world.ranks[0], tensor, Rank(1), INT32_MIN + 64).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0: tag: -2147483584 of send"));
  EXPECT_TRUE(Send(*world.ranks[0], tensor, Rank(1), -1).ok());
}

TEST(ProgramCommunicatorTest, ACommunicatorThatClosesInTheMiddleFailsItsPeers) {
  World world(3, {}, 0);
  float values[3] = {1, 2, 3};
  std::vector<Completion> completions;
  for (size_t r = 0; r < 2; ++r) {
    const Tensor tensor{&values[r], 1, DType::kFloat32};
    const auto completion = AllReduce(*world.ranks[r], tensor, tensor, ReduceOp::kSum);
    ASSERT_TRUE(completion.ok()) << completion.status();
    completions.push_back(*completion);
  }
  world.Settle();
  world.ranks[1].reset();
  world.Settle();
  const OperationRunner::State state = world.ranks[0]->Query(completions[0]);
  EXPECT_TRUE(state.done);
  EXPECT_EQ(state.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(state.status.message()), HasSubstr("rank 1"));
}

// Rank 2 runs a barrier, whose messages meet none of the allreduce's at once.
// A wire that calls `within` before its Abort has let go of the operations' memory.
// Threads: as Communicator. Owns: as ForwardingCommunicator.
class SlowlyAborted final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void Abort(const absl::Status& reason) override {
    if (within) within();
    ForwardingCommunicator::Abort(reason);
  }
  std::function<void()> within;
};

// What another thread that drives sees while this one is at the abort.
TEST(ProgramCommunicatorTest, AnAbortEndsNothingBeforeTheWireHasLetGo) {
  FakeClock clock;
  SimFabric fabric(WorldSize(2), SimOptions{{}, 1, &clock});
  auto opened = fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(2)));
  ASSERT_TRUE(opened.ok());
  auto slow = std::make_unique<SlowlyAborted>(std::move((*opened)[0]));
  SlowlyAborted& wire = *slow;
  const auto rank = MakeProgramCommunicator(std::move(slow), SelectionTable::Default());
  std::vector<float> values(8);
  const Tensor tensor = {values.data(), values.size(), DType::kFloat32};
  const auto collective = AllReduce(*rank, tensor, tensor, ReduceOp::kSum);
  const auto message = Recv(*rank, tensor, Rank(1));
  ASSERT_TRUE(collective.ok() && message.ok());
  int looks = 0;
  wire.within = [&] {
    ++looks;
    rank->Progress();
    EXPECT_FALSE(rank->Query(*collective).done);
    EXPECT_FALSE(rank->Query(*message).done);
    EXPECT_EQ(Barrier(*rank).status(), absl::InternalError("enough"));
  };
  rank->Abort(absl::InternalError("enough"));
  wire.within = nullptr;
  EXPECT_EQ(looks, 1);
  for (const Completion completion : {*collective, *message}) {
    EXPECT_TRUE(rank->Query(completion).done);
    EXPECT_EQ(rank->Query(completion).status, absl::InternalError("enough"));
  }
}

TEST(ProgramCommunicatorTest, ADisagreementIsNamedOnAllRanks) {
  World world(5, {.latency = absl::Microseconds(10)}, 0);
  std::vector<float> values(5);
  std::vector<Completion> completions;
  for (size_t r = 0; r < 5; ++r) {
    const Tensor tensor{&values[r], 1, DType::kFloat32};
    const auto completion = r == 2 ? Barrier(*world.ranks[r])
                                   : AllReduce(*world.ranks[r], tensor, tensor, ReduceOp::kSum);
    ASSERT_TRUE(completion.ok()) << completion.status();
    completions.push_back(*completion);
  }
  world.Settle();
  for (size_t r = 0; r < 5; ++r) {
    const OperationRunner::State state = world.ranks[r]->Query(completions[r]);
    EXPECT_TRUE(state.done);
    EXPECT_EQ(state.status.code(), absl::StatusCode::kInvalidArgument) << state.status;
    EXPECT_THAT(std::string(state.status.message()), HasSubstr("barrier on rank 2"));
  }
}

}  // namespace
}  // namespace pelton
