// The example of docs/actors.md.
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/actor/context.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/pool_executor.h"
#include "core/actor/spawn.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// A message is an aggregate of owned values. A question carries the promise of its answer.
struct Beat {
  Rank from;
};
struct CountAlive {
  Promise<int> reply;
};

class HeartbeatMonitor : public Actor {
 public:
  explicit HeartbeatMonitor(absl::Duration timeout) : timeout_(timeout) {}

  void Handle(Beat beat) {
    timers_[beat.from].Cancel();
    timers_[beat.from] = context().SendAfter(*this, timeout_, Late{beat.from});
  }
  void Handle(CountAlive count) { count.reply.Set(static_cast<int>(timers_.size())); }

  // A message to itself; private types need no secrecy, only a Handle().
  struct Late {
    Rank rank;
  };
  absl::Status Handle(Late late) {
    timers_.erase(late.rank);
    if (timers_.empty()) return absl::UnavailableError("no rank is alive");  // ends this actor
    return absl::OkStatus();
  }

 private:
  const absl::Duration timeout_;
  absl::flat_hash_map<Rank, Timer> timers_;
};

TEST(ExampleTest, RanksThatStopBeatingAreForgotten) {
  ForEachSeed(100, [](uint64_t seed) {
    SimExecutor executor(seed);  // or PoolExecutor(2), or ThreadExecutor
    const auto monitor =
        Spawn<HeartbeatMonitor>(executor, {.name = "heartbeats"}, absl::Seconds(10));
    ASSERT_TRUE(monitor.Send(Beat{Rank(0)}).ok());
    ASSERT_TRUE(monitor.Send(Beat{Rank(1)}).ok());
    executor.RunFor(absl::Seconds(6));  // of virtual time
    ASSERT_TRUE(monitor.Send(Beat{Rank(1)}).ok());
    executor.RunFor(absl::Seconds(6));
    EXPECT_EQ(monitor.Ask(CountAlive{}, Soon()).Await(Soon()).value(), 1);

    Future<Down> down = WhenDown(monitor);
    executor.RunFor(absl::Seconds(6));
    EXPECT_EQ(std::move(down).Take()->why.code(), absl::StatusCode::kUnavailable);
  });
}

absl::StatusOr<int> CountOneRank(absl::Time deadline) {
  PoolExecutor executor(2);
  const auto monitor = Spawn<HeartbeatMonitor>(executor, {.name = "heartbeats"}, absl::Seconds(10));
  RETURN_IF_ERROR(monitor.Send(Beat{Rank(0)}));
  ASSIGN_OR_RETURN(int alive, monitor.Ask(CountAlive{}, deadline).Await(deadline));
  return alive;
}

TEST(ExampleTest, AThreadGetsTheAnswerOfAPool) { EXPECT_EQ(CountOneRank(Soon()).value(), 1); }

}  // namespace
}  // namespace pelton
