// Whom a barrier waits for, and what is left of one that has failed.
#include "torch_bindings/csrc/c10d/monitored_barrier.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/lane/job.h"
#include "comm/lane/lane.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/moving_deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr absl::Duration kShort = absl::Milliseconds(50);

// Threads: the test's and those of the lanes. Owns: all ranks.
class Barriers {
 public:
  explicit Barriers(int size) : fabric_(WorldSize(size)) {
    auto communicators = *fabric_.OpenAll(CommunicatorId(3), Group::World(WorldSize(size)));
    for (int rank = 0; rank < size; ++rank) {
      lanes_.push_back(lane::Lane::Create(std::move(communicators[static_cast<size_t>(rank)])));
      barriers_.push_back(
          std::make_unique<MonitoredBarrier>(lanes_.back(), standstill, rank, size));
    }
  }
  ~Barriers() {
    for (const auto& lane : lanes_) lane->Stop();
  }
  Barriers(const Barriers&) = delete;
  Barriers& operator=(const Barriers&) = delete;

  absl::Status Pass(size_t rank, absl::Duration timeout, bool names_all = false) {
    return barriers_[rank]->Pass({"barrier", timeout, names_all});
  }
  // All ranks, each on a thread. By rank.
  std::vector<absl::Status> PassAll() {
    std::vector<absl::Status> statuses(barriers_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < barriers_.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = Pass(rank, kLong); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  // Returns once all that the rank has posted is on the wire, which its lane sends by itself.
  void AwaitSends(size_t rank) {
    lane::Job marker;
    marker.queue = lane::Job::Queue::kSends;
    marker.launches.emplace_back(
        [](Communicator&) -> absl::StatusOr<Completion> { return absl::CancelledError(); });
    lanes_[rank]->Run(std::move(marker));
  }
  void ExpectAllPass() {
    for (const absl::Status& status : PassAll()) EXPECT_TRUE(status.ok()) << status;
  }

  Standstill standstill;

 private:
  SimFabric fabric_;
  std::vector<std::shared_ptr<lane::Lane>> lanes_;
  std::vector<std::unique_ptr<MonitoredBarrier>> barriers_;
};

TEST(MonitoredBarrierTest, RanksThatAllComePass) {
  Barriers barriers(3);
  barriers.ExpectAllPass();
  barriers.ExpectAllPass();
}

TEST(MonitoredBarrierTest, ARankAlonePasses) {
  Barriers barriers(1);
  EXPECT_EQ(barriers.Pass(0, kShort), absl::OkStatus());
}

TEST(MonitoredBarrierTest, TheFirstRankThatIsMissingIsNamedOrAllOfThem) {
  Barriers barriers(4);
  absl::Status of_rank_2;
  std::thread rank_2([&] { of_rank_2 = barriers.Pass(2, kLong / 10); });
  EXPECT_EQ(
      barriers.Pass(0, kShort),
      absl::DeadlineExceededError("barrier: Rank 1 failed to pass monitoredBarrier in 50 ms"));
  EXPECT_EQ(
      barriers.Pass(0, kLong / 40, /*names_all=*/true),
      absl::DeadlineExceededError("barrier: Ranks 1, 3 failed to pass monitoredBarrier in 500 ms"));
  rank_2.join();
  EXPECT_THAT(of_rank_2.ToString(),
              AllOf(HasSubstr("DEADLINE_EXCEEDED: barrier: Rank 2 successfully reached"),
                    HasSubstr("no answer within 2000 ms")));
}

TEST(MonitoredBarrierTest, ARankWhoseTimeIsOverIsInTheBarrierNoLonger) {
  Barriers barriers(2);
  EXPECT_FALSE(barriers.Pass(1, kShort).ok());
  barriers.AwaitSends(1);
  EXPECT_THAT(barriers.Pass(0, kShort).ToString(), HasSubstr("Rank 1 failed to pass"));
  barriers.ExpectAllPass();
}

TEST(MonitoredBarrierTest, UnequalNumbersOfAttemptsLeaveNothingBehind) {
  Barriers barriers(3);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(barriers.Pass(1, kShort).ok());
  EXPECT_FALSE(barriers.Pass(2, kShort).ok());
  for (const size_t rank : {1, 2}) barriers.AwaitSends(rank);
  EXPECT_EQ(
      barriers.Pass(0, kShort, /*names_all=*/true),
      absl::DeadlineExceededError("barrier: Ranks 1, 2 failed to pass monitoredBarrier in 50 ms"));
  barriers.ExpectAllPass();
  // Only rank 1: an answer of before would let it pass.
  EXPECT_FALSE(barriers.Pass(1, kShort).ok());
}

TEST(MonitoredBarrierTest, ATimeoutOfNothingIsOver) {
  Barriers barriers(2);
  EXPECT_EQ(
      barriers.Pass(0, absl::ZeroDuration()),
      absl::DeadlineExceededError("barrier: Rank 0 timed out in monitoredBarrier after 0 ms"));
}

TEST(MonitoredBarrierTest, AnotherThreadsCallIsWaitedForUntilTheTimeout) {
  Barriers barriers(2);
  absl::Status of_first;
  std::thread first([&] { of_first = barriers.Pass(0, kLong); });
  // As often as this thread comes first.
  absl::Status of_second;
  do {
    of_second = barriers.Pass(0, kShort);
  } while (absl::StrContains(of_second.message(), "failed to pass"));
  EXPECT_EQ(of_second, absl::DeadlineExceededError(
                           "barrier: Rank 0: another thread's barrier on this group has not ended "
                           "in 50 ms; call it from one thread"));
  EXPECT_EQ(barriers.Pass(1, kLong), absl::OkStatus());
  first.join();
  EXPECT_EQ(of_first, absl::OkStatus());
}

TEST(MonitoredBarrierTest, NoTimeoutComesNearerWhileARankIsAwaited) {
  Barriers barriers(2);
  barriers.standstill.Begin(absl::Now());
  std::vector<absl::Status> statuses(2);
  std::thread rank_0([&] { statuses[0] = barriers.Pass(0, absl::Milliseconds(1)); });
  std::thread end([&] {
    // Longer than the timeout has gone by, because another group's barrier has timed out.
    Barriers others(2);
    EXPECT_FALSE(others.Pass(0, kShort).ok());
    statuses[1] = barriers.Pass(1, absl::Milliseconds(1));
  });
  end.join();
  rank_0.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace pelton::torch_bindings
