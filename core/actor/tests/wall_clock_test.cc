// What actors and those who wait for them do while the machine's clock is stepped.
#include <thread>
#include <utility>

#include "core/actor/context.h"
#include "core/actor/pool_executor.h"
#include "core/actor/promise.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/actor/wait_hook.h"
#include "core/base/test_wall_clock_step.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr absl::Duration kStep = absl::Hours(1);
absl::Time InFiveMinutes() { return WaitClock().Now() + absl::Minutes(5); }

TEST(WallClockTest, AStepMakesNoAnswerLate) {
  auto [promise, future] = MakePromise<int>(InFiveMinutes());
  const WallClockStep stepped(kStep);
  std::thread answers([promise = std::move(promise)]() mutable {
    std::this_thread::yield();
    promise.Set(7);
  });
  EXPECT_EQ(std::move(future).Await(InFiveMinutes()).value_or(0), 7);
  answers.join();
}

struct Arm {
  absl::Duration delay;
};
struct Ring {};
struct HasRung {
  Promise<bool> reply;
};
class Alarm : public Actor {
 public:
  void Handle(Arm arm) { context().SendAfter(*this, arm.delay, Ring{}); }
  void Handle(Ring) { has_rung_ = true; }
  void Handle(HasRung question) { question.reply.Set(has_rung_); }

 private:
  bool has_rung_ = false;
};

template <typename E>
void ExpectNoTimerToRing(E& executor) {
  const ActorRef<Alarm> alarm = Spawn<Alarm>(executor, {});
  ASSERT_TRUE(alarm.Send(Arm{absl::Minutes(5)}).ok());
  ASSERT_FALSE(alarm.Ask(HasRung{}, InFiveMinutes()).Await(InFiveMinutes()).value());
  const WallClockStep stepped(kStep);
  // A busy executor looks at its timers once in some rounds.
  for (int i = 0; i < 200; ++i) {
    ASSERT_FALSE(alarm.Ask(HasRung{}, InFiveMinutes()).Await(InFiveMinutes()).value());
  }
}

TEST(WallClockTest, AStepMakesNoTimerRing) {
  ThreadExecutor thread;
  ExpectNoTimerToRing(thread);
  PoolExecutor pool(2);
  ExpectNoTimerToRing(pool);
}

}  // namespace
}  // namespace pelton
