// Rounds that ranks do not share, through a model's port: with threads and real time, in process
// and, as backend/link:model_port_alone_link_test, with a daemon for each rank.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/model_port.h"
#include "backend/test_fixture_ranks.h"
#include "backend/test_port_worlds.h"
#include "backend/test_ranks.h"
#include "backend/test_tensors.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/plan/round_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kRanks = 3;
constexpr size_t kBuckets = 2;

// By bucket and rank: what has been sent to the rank, and is not taken in.
std::atomic<int> letters[kBuckets][kRanks];
std::atomic<int> last_stages;

// A round takes one from each of the rank's elements and sends it to the next rank, whose round
// adds what has come.
// Threads: as Stage. Owns: nothing.
class LetterStage final : public Stage {
 public:
  explicit LetterStage(Rank rank) : rank_(static_cast<size_t>(rank.value())) {}
  absl::string_view name() const override { return "letters"; }

  absl::Status Start(BucketRun& run, StageState*) override {
    std::atomic<int>* const boxes = letters[run.layout().id.value()];
    int sum = boxes[rank_].exchange(0);
    if (run.mode() == RoundMode::kCollecting) {
      ++last_stages;
    } else {
      ++boxes[(rank_ + 1) % kRanks];
      --sum;
    }
    auto* const flat = reinterpret_cast<float*>(run.flat());
    std::fill(flat, flat + run.layout().flat_count, static_cast<float>(sum));
    return absl::OkStatus();
  }

 private:
  const size_t rank_;
};

// Threads: as Algorithm. Owns: nothing.
class Letters final : public Algorithm {
 public:
  std::string BytesSent() const override { return "B"; }
  Schedule schedule() const override {
    return {.source = Source::kWeights,
            .trigger = TriggerKind::kTimer,
            .pause = absl::Microseconds(200),
            .ranks_share_rounds = false,
            .commit = {.kept = 1, .taken = 1}};
  }
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout&, const Tiers& tiers) override {
    PipelineSpec spec;
    spec.stages.push_back(std::make_unique<LetterStage>(tiers.all->rank()));
    return spec;
  }
};
REGISTER_ALGORITHM(test_letters, "rounds of each rank's own", Letters);

PortSettings Alone(std::string algorithm, AlgorithmOptions options = {}) {
  return {.algorithm = std::move(algorithm), .options = std::move(options), .commits_state = false};
}

absl::Status Step(
    ModelPort& port, absl::FunctionRef<void()> train = [] {}) {
  for (EventKind kind : {EventKind::kForwardBegins, EventKind::kBackwardBegins,
                         EventKind::kBackwardEnds, EventKind::kBeforeStep}) {
    RETURN_IF_ERROR(port.Post(Event(kind)));
  }
  train();
  return port.Post(Event(EventKind::kAfterStep));
}

TEST(ModelPortAloneTest, RanksStopOneAfterAnotherAndWhatIsUnderWayArrives) {
  last_stages = 0;
  std::vector<Tensors> results(kRanks);
  std::vector<uint64_t> rounds(kRanks);
  std::atomic<bool> has_waited = false;  // rank 0, for the others
  const auto ended = RunFixtureRanks(kRanks, [&](const BackendOptions& options) {
    const auto rank = static_cast<size_t>(options.rank.value());
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    PlainTensors tensors(Initial());
    for (std::vector<float>& tensor : tensors.tensors()) tensor.assign(tensor.size(), 0);
    ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port,
                     MakePort(*backend, Alone("test_letters"), tensors));
    RETURN_IF_ERROR(Step(*port));
    if (rank == 0) {
      const absl::Status late = port->Stop(absl::Milliseconds(200));
      has_waited = true;
      EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(std::string(late.message()),
                  AllOf(HasSubstr("is this rank's last"), HasSubstr("its wish stands")));
    } else {
      const absl::Time deadline = Soon();
      while (!has_waited && Clock::Real().Now() < deadline) RETURN_IF_ERROR(Step(*port));
    }
    RETURN_IF_ERROR(port->Stop(absl::Seconds(30)));
    results[rank] = tensors.tensors();
    rounds[rank] = port->statistics().rounds;
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(last_stages, kBuckets * kRanks);
  EXPECT_GT(rounds[1], rounds[0]) << "it went on while rank 0 waited";
  for (size_t slot = 0; slot < kBuckets; ++slot) {
    for (size_t i = 0; i < kCounts[slot]; ++i) {
      EXPECT_EQ(results[0][slot][i] + results[1][slot][i] + results[2][slot][i], 0);
    }
  }
}

// Rounds go on until all ranks have had so many from here on.
void AwaitRounds(ModelPort& port, uint64_t count, std::atomic<size_t>& ranks_done) {
  const uint64_t before = port.statistics().rounds;
  const absl::Time give_up = Soon();
  bool is_done = false;
  while (ranks_done < kRanks && Clock::Real().Now() < give_up) {
    if (!is_done && port.statistics().rounds >= before + count) {
      is_done = true;
      ++ranks_done;
    }
    std::this_thread::yield();
  }
  EXPECT_EQ(ranks_done, kRanks);
}

// Over a star, whose centre has more of the shares than the others.
TEST(ModelPortAloneTest, PushSumComesToTheMeanOfWhatRanksLearn) {
  std::atomic<size_t> trained = 0;
  std::atomic<size_t> averaged = 0;
  std::vector<Tensors> results(kRanks);
  std::vector<Tensors> alone(kRanks, Initial());
  const PortSettings settings =
      Alone("asynchronous_push_sum", {{"sync_interval_ms", "0"}, {"graph", "star"}});
  const auto ended = RunFixtureRanks(kRanks, [&](const BackendOptions& options) {
    const auto rank = static_cast<size_t>(options.rank.value());
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    PlainTensors tensors(Initial());
    ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port, MakePort(*backend, settings, tensors));
    for (uint64_t step = 1; step <= 50; ++step) {
      RETURN_IF_ERROR(Step(*port, [&] { Train(tensors.tensors(), options.rank.value(), step); }));
      Train(alone[rank], options.rank.value(), step);
    }
    AwaitRounds(*port, 1, trained);
    AwaitRounds(*port, 60, averaged);
    RETURN_IF_ERROR(port->Stop(absl::Seconds(30)));
    results[rank] = tensors.tensors();
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
  for (size_t slot = 0; slot < kBuckets; ++slot) {
    for (size_t i = 0; i < kCounts[slot]; ++i) {
      const float mean = (alone[0][slot][i] + alone[1][slot][i] + alone[2][slot][i]) / 3;
      for (const Tensors& rank : results) EXPECT_NEAR(rank[slot][i], mean, 1e-3) << i;
    }
  }
}

// Edges that one end alone has would show in the rounds that use them, or never.
TEST(ModelPortAloneTest, OptionsThatDifferBetweenRanksAreNamedOnAllOfThem) {
  for (const char* name : {"asynchronous_pairs", "asynchronous_push_sum"}) {
    const auto ended = RunFixtureRanks(kRanks, [&](const BackendOptions& options) -> absl::Status {
      ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
      PlainTensors tensors(Initial());
      const char* const graph = options.rank == Rank(1) ? "star" : "fully_connected";
      const absl::Status made =
          MakePort(*backend, Alone(name, {{"graph", graph}}), tensors).status();
      // Nobody leaves while another one compares.
      RETURN_IF_ERROR(Barrier(backend->control(), "end", Soon()));
      return made;
    });
    for (const absl::Status& status : ended) {
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("rank 1"), HasSubstr(absl::StrCat(name, "(graph=star)")),
                        HasSubstr(absl::StrCat(name, "(graph=fully_connected)"))));
    }
  }
}

TEST(ModelPortAloneTest, AreNotBegunByTheTrainersCalls) {
  const auto ended = RunFixtureRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    PlainTensors tensors(Initial());
    PortSettings settings = Alone("test_letters");
    settings.on_call = true;
    const absl::Status refused = MakePort(*backend, settings, tensors).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("test_letters"), HasSubstr("by a timer, not on_call")));
    return absl::OkStatus();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

}  // namespace
}  // namespace pelton
