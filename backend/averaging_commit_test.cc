// COMMIT-1, for the weights of rounds beside training: whichever operation a rank's communication
// ends at, and whichever value that it sends through a window, its weights are those that the last
// whole merge has left, bitwise, and nothing goes on from what the failed round has left of itself.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/averaging_loop.h"
#include "backend/test_loop_world.h"
#include "core/actor/sim_test.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int32_t kRanks = 3;
constexpr size_t kBuckets = 2;

// What a rank's communication is made of.
enum class Traffic { kOperations, kWindows };

struct Case {
  std::string algorithm;
  Traffic traffic = Traffic::kOperations;

  friend void PrintTo(const Case& one, std::ostream* out) {
    *out << one.algorithm << (one.traffic == Traffic::kWindows ? "_in_windows" : "_at_operations");
  }
};

// What is to end the communication of a rank. Threads: a value. Owns: nothing.
struct End {
  int32_t rank = 0;
  uint64_t number = 0;  // from 1, in the rounds that count
};

// All ranks have averaged and stopped; then they train once more, and average and stop again, in
// rounds that may be ended.
// Threads: one. Owns: the world.
class CommitWorld {
 public:
  CommitWorld(const Case& one, uint64_t seed)
      : traffic_(one.traffic),
        world_(seed, kRanks, [&one](Rank) { return *MakeAlgorithm(one.algorithm, {}); }) {
    Train(1);
    for (const absl::Status& stopped : AverageAndStop()) EXPECT_TRUE(stopped.ok()) << stopped;
    Train(2);
    for (int32_t number = 0; number < kRanks; ++number) {
      before_.push_back({rank(number).weights(), rank(number).WindowTensors()});
      merges_before_.push_back(rank(number).merged().size());
      count_before_.push_back(Count(number));
    }
  }

  void EndAt(const End& end) {
    if (traffic_ == Traffic::kWindows) return world_.windows().EndAtReach(end.rank, end.number);
    world_.communicator(end.rank).EndAtLaunch(end.number);
  }

  // By rank, what its rounds have ended with.
  std::vector<absl::Status> AverageAndStop() {
    world_.ResumeAll();
    RunFor(absl::Milliseconds(1));
    std::vector<Future<void>> stops;
    for (int32_t number = 0; number < kRanks; ++number) {
      const absl::Time deadline = world_.executor().Now() + kStopTimeout;
      stops.push_back(rank(number).loop().RequestStop(deadline));
    }
    std::vector<absl::Status> ended;
    for (Future<void>& stop : stops) {
      ended.push_back(std::move(stop).Await(world_.executor().Now() + 2 * kStopTimeout));
    }
    return ended;
  }

  void RunFor(absl::Duration duration) { world_.executor().RunFor(duration); }
  LoopRank& rank(int32_t number) { return world_.rank(number); }
  // How much of the traffic there was in the rounds that count.
  uint64_t CountOf(int32_t number) {
    return Count(number) - count_before_[static_cast<size_t>(number)];
  }
  // The whole merges in those rounds.
  size_t MergesOf(int32_t number) {
    return rank(number).merged().size() - merges_before_[static_cast<size_t>(number)];
  }
  // What a rank had when `merges` of them were over.
  const LoopRank::Merged& After(int32_t number, size_t merges) {
    const auto index = static_cast<size_t>(number);
    if (merges == 0) return before_[index];
    return rank(number).merged()[merges_before_[index] + merges - 1];
  }

 private:
  uint64_t Count(int32_t number) {
    if (traffic_ == Traffic::kWindows) return world_.windows().ReachCount(number);
    return world_.communicator(number).launched();
  }
  // No rank is at the mean of all, and sums round, so that a mixture is no whole merge by chance.
  void Train(int step) {
    for (int32_t number = 0; number < kRanks; ++number) {
      rank(number).Train(0.37F * static_cast<float>(step) *
                         static_cast<float>(1 + 2 * number * number));
    }
  }

  const Traffic traffic_;
  LoopWorld world_;
  std::vector<LoopRank::Merged> before_;  // by rank
  std::vector<size_t> merges_before_;
  std::vector<uint64_t> count_before_;
};

// The bucket that a failed edge's window belongs to.
size_t BucketOf(const absl::Status& failed) {
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    if (absl::StrContains(failed.message(), absl::StrCat("of bucket ", bucket, "'"))) return bucket;
  }
  ADD_FAILURE() << "no window is named: " << failed;
  return kBuckets;
}

class AveragingCommitTest : public ::testing::TestWithParam<Case> {
 protected:
  // `whole` is the same world, where nothing has ended.
  static void ExpectWholeMerges(CommitWorld& whole, const End& end, uint64_t seed) {
    SCOPED_TRACE(absl::StrCat("rank ", end.rank, " is ended at number ", end.number));
    CommitWorld world(GetParam(), seed);
    world.EndAt(end);
    const std::vector<absl::Status> ended = world.AverageAndStop();
    EXPECT_FALSE(ended[static_cast<size_t>(end.rank)].ok()) << "it was not ended";
    EXPECT_LT(world.MergesOf(end.rank), whole.MergesOf(end.rank));
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      // Whom windows alone connect with the rank that has ended goes on, and may be told other
      // values than in the whole world.
      const bool is_same = rank == end.rank || GetParam().traffic == Traffic::kOperations;
      const size_t merges = world.MergesOf(rank);
      const LoopRank::Merged& expected =
          is_same ? whole.After(rank, merges) : world.After(rank, merges);
      EXPECT_EQ(world.rank(rank).weights(), expected.weights) << "rank " << rank;
    }
    if (GetParam().traffic == Traffic::kWindows) {
      ExpectLaterWindowsAreAsBefore(world, end.rank, ended[static_cast<size_t>(end.rank)]);
    }
    ExpectNothingGoesOn(world, end.rank);
  }

  // Windows are no state that `commits_state` puts back, because other ranks may have taken what
  // was sent: those of the bucket that failed have a part of the round. Those of later buckets have
  // none of it.
  static void ExpectLaterWindowsAreAsBefore(CommitWorld& world, int32_t rank,
                                            const absl::Status& failed) {
    const std::vector<std::string> now = world.rank(rank).WindowTensors();
    const std::vector<std::string>& before = world.After(rank, world.MergesOf(rank)).windows;
    const size_t windows_of_a_bucket = now.size() / kBuckets;
    for (size_t i = (BucketOf(failed) + 1) * windows_of_a_bucket; i < now.size(); ++i) {
      EXPECT_EQ(now[i], before[i]) << "window " << i << " of rank " << rank;
    }
  }

  static void ExpectNothingGoesOn(CommitWorld& world, int32_t rank) {
    const std::vector<float> weights = world.rank(rank).weights();
    const std::vector<std::string> windows = world.rank(rank).WindowTensors();
    EXPECT_FALSE(world.rank(rank).loop().Resume().ok());
    world.RunFor(absl::Milliseconds(5));
    EXPECT_EQ(world.rank(rank).weights(), weights);
    EXPECT_EQ(world.rank(rank).WindowTensors(), windows);
  }
};

TEST_P(AveragingCommitTest, WeightsAreThoseOfTheLastWholeMergeWhereverARankEnds) {
  ForEachSeed(3, [&](uint64_t seed) {
    CommitWorld whole(GetParam(), seed);
    for (const absl::Status& ended : whole.AverageAndStop()) ASSERT_TRUE(ended.ok()) << ended;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      const uint64_t count = whole.CountOf(rank);
      ASSERT_GT(count, 0U) << "rank " << rank << " has nothing to be ended at";
      ASSERT_NE(whole.After(rank, whole.MergesOf(rank)).weights, whole.After(rank, 0).weights);
      for (uint64_t number = 1; number <= count; ++number) {
        ExpectWholeMerges(whole, {rank, number}, seed);
      }
    }
  });
}

// Every timer-driven algorithm at its operations, which are the last barrier alone where ranks have
// rounds of their own, and those at their windows, too.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    const std::unique_ptr<Algorithm> algorithm = *MakeAlgorithm(entry.name, {});
    if (algorithm->schedule().trigger != TriggerKind::kTimer) continue;
    cases.push_back({entry.name, Traffic::kOperations});
    if (algorithm->UsesWindows()) cases.push_back({entry.name, Traffic::kWindows});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, AveragingCommitTest, ::testing::ValuesIn(Cases()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace pelton
