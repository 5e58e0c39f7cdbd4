// The loop of a dedicated thread, run in every order that a seed gives: messages come at any point
// of a turn, as from other threads, and time passes only while every thread is parked.
#include "core/actor/thread_loop.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/actor/borrow.h"
#include "core/actor/context.h"
#include "core/actor/executor_base.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct VirtualClock final : Clock {
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch() + absl::Hours(24 * 365);
};

// A thread's loop, stepped by the test: what ThreadExecutor does, without the thread.
class SteppedExecutor final : public internal::ExecutorBase {
 public:
  explicit SteppedExecutor(VirtualClock& clock) : clock_(clock), loop_(timers(), clock) {}
  ~SteppedExecutor() override { KillAll(); }

  const Clock& clock() const override { return clock_; }
  void Schedule(internal::ActorCell& cell) override {
    if (running == this) return loop_.Push(cell);
    if (loop_.PushFromOutside(cell)) kicked_ = true;
  }
  void OnEarlierTimer() override { kicked_ = true; }

  bool parked() const { return parked_until_.has_value() && !kicked_; }
  absl::Time parked_until() const { return *parked_until_; }
  // One round of the loop, after which it parks if `pauses` are over and it may.
  void Step(bool may_park) {
    kicked_ = parked_until_.has_value() ? false : kicked_;
    parked_until_.reset();
    running = this;
    const bool goes_on = loop_.RunOnce();
    if (!goes_on && may_park && !loop_.DeliverDueTimers()) {
      parked_until_ = clock_.now + loop_.LongestPark();
    }
    running = nullptr;
  }

  // Whose thread the code under test runs on; null: any other thread.
  static inline SteppedExecutor* running = nullptr;

 private:
  VirtualClock& clock_;
  internal::ThreadLoop loop_;
  bool kicked_ = false;
  std::optional<absl::Time> parked_until_;
};

struct Work {
  int polls;
};

class World;

// Takes some polls per message; the world may act in the middle of each of its turns.
class PolledActor final : public PollingActor {
 public:
  explicit PolledActor(World* world) : world_(*world) {}
  void Handle(Work work);
  PollResult Poll() override;
  absl::Duration MaxPark() const override { return absl::Seconds(7); }

 private:
  World& world_;
  int polls_left_ = 0;
};

// Threads with actors on them, senders and a borrower, all of them steps of one seed.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    for (int thread = 0; thread < 2; ++thread) {
      threads_.push_back(std::make_unique<SteppedExecutor>(clock_));
      for (int i = 0; i < 2; ++i) actors_.push_back(Spawn<PolledActor>(*threads_.back(), {}, this));
    }
  }
  ~World() {
    borrowed_.reset();
    acts_ = 0;
  }

  uint64_t Uniform(uint64_t bound) { return random_() % bound; }

  // What other threads do meanwhile: perhaps nothing.
  void MayAct() {
    if (acts_ == 0 || Uniform(4) != 0) return;
    --acts_;
    SteppedExecutor* const here = std::exchange(SteppedExecutor::running, nullptr);
    const ActorRef<PolledActor>& actor = actors_[Uniform(actors_.size())];
    if (Uniform(3) != 0) {
      if (actor.Send(Work{static_cast<int>(Uniform(3))}).ok()) ++sent_;
    } else if (borrowed_.has_value()) {
      borrowed_.reset();
    } else {
      borrowed_ = TryBorrow(actor);
    }
    SteppedExecutor::running = here;
  }
  void OnHandled() { ++handled_; }

  // Runs until nothing is left to act and every thread is parked; true if no message waited while
  // time passed.
  bool Run() {
    while (acts_ > 0 || borrowed_.has_value() || !AllParked()) {
      if (AllParked()) {
        if (!borrowed_.has_value() && sent_ != handled_) return false;
        SleepUntilTheFirst();
      }
      Step();
    }
    return sent_ == handled_;
  }
  int sent() const { return sent_; }

 private:
  bool AllParked() const {
    for (const auto& thread : threads_) {
      if (!thread->parked()) return false;
    }
    return true;
  }
  void Step() {
    const uint64_t choice = Uniform(threads_.size() + 1);
    if (choice == threads_.size()) {
      MayAct();
      if (acts_ == 0) borrowed_.reset();
      return;
    }
    SteppedExecutor& thread = *threads_[choice];
    if (!thread.parked() || thread.parked_until() <= clock_.now) thread.Step(Uniform(2) == 0);
  }
  void SleepUntilTheFirst() {
    absl::Time first = absl::InfiniteFuture();
    for (const auto& thread : threads_) first = std::min(first, thread->parked_until());
    clock_.now = std::max(clock_.now, first);
  }

  std::mt19937_64 random_;
  VirtualClock clock_;
  int acts_ = 60;
  int sent_ = 0;
  int handled_ = 0;
  std::vector<ActorRef<PolledActor>> actors_;
  std::vector<std::unique_ptr<SteppedExecutor>> threads_;
  std::optional<Borrowed<PolledActor>> borrowed_;
};

void PolledActor::Handle(Work work) {
  world_.OnHandled();
  polls_left_ += work.polls;
  world_.MayAct();
}

PollResult PolledActor::Poll() {
  // After the turn's last drain: the sender sees that the turn is held and wakes nobody.
  world_.MayAct();
  if (polls_left_ == 0) return PollResult::kNothingToDo;
  if (world_.Uniform(2) == 0) return PollResult::kIdle;
  --polls_left_;
  return PollResult::kMoved;
}

TEST(ThreadLoopTest, NoMessageWaitsWhileEveryThreadIsParked) {
  ForEachSeed(2'000, [](uint64_t seed) {
    World world(seed);
    EXPECT_TRUE(world.Run());
    EXPECT_GT(world.sent(), 0);
  });
}

struct Note {};
// Sends itself a message in its `at`th poll in a row that came to nothing.
class Reminder final : public PollingActor {
 public:
  Reminder(int at, std::atomic<bool>* waits, std::atomic<bool>* handled)
      : at_(at), waits_(*waits), handled_(*handled) {}
  void Handle(Note) {
    waits_ = false;
    handled_ = true;
  }
  PollResult Poll() override {
    if (handled_) return PollResult::kNothingToDo;
    if (++polls_ == at_) {
      waits_ = true;
      EXPECT_TRUE(context().RefTo(*this).Send(Note{}).ok());
    }
    return PollResult::kIdle;
  }

 private:
  const int at_;
  int polls_ = 0;
  std::atomic<bool>& waits_;
  std::atomic<bool>& handled_;
};

// The last poll before the park is one of the first: the thread spins and yields a few times only.
TEST(ThreadLoopTest, AThreadDoesNotParkWhileItsActorHasAMessage) {
  for (int at = 1; at <= 20; ++at) {
    std::atomic<bool> waits{false};
    std::atomic<bool> handled{false};
    std::atomic<int> parks_with_work{0};
    ThreadExecutor executor({.park = [&](Waker& waker, absl::Duration at_most) {
      parks_with_work += waits ? 1 : 0;
      waker.Park(std::min(at_most, absl::Milliseconds(1)));
    }});
    const auto reminder = Spawn<Reminder>(executor, {}, at, &waits, &handled);
    while (!handled) std::this_thread::yield();
    EXPECT_EQ(parks_with_work, 0) << at;
  }
}

}  // namespace
}  // namespace pelton
