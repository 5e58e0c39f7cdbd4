// All actors in one thread, in virtual time, interleaved by a seed.
#ifndef PELTON_CORE_ACTOR_SIM_EXECUTOR_H_
#define PELTON_CORE_ACTOR_SIM_EXECUTOR_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/actor/executor_base.h"
#include "core/actor/wait_hook.h"

namespace pelton {

// Something outside the actors that shares a simulation's virtual time, such as a simulated
// network. Threads: the simulation's. Owns: its pending events.
class EventSource {
 public:
  virtual ~EventSource() = default;
  // When its next event is due; infinite if it has none.
  virtual absl::Time NextEventTime() = 0;
  // Lets all events happen that are due at `now`.
  virtual void RunDue(absl::Time now) = 0;
};

// What goes wrong in a simulation, as the seed chooses. One in 0: never.
struct SimFaults {
  // A turn of an actor that its parent restarts fails: before its first message, or after as many
  // as the seed chooses, with the others still to be handled.
  uint64_t crash_one_in = 0;
  uint64_t most_messages_before_crash = 4;
  // A turn that is due comes later by up to `longest_delay`: its messages wait for it. As a turn
  // has one message, each is delayed by itself, and none overtakes another.
  uint64_t delay_one_in = 0;
  absl::Duration longest_delay = absl::Milliseconds(10);
};

// The deterministic executor: the same seed and program give the same run. Each step gives a turn
// of one message or one poll to a random one of the actors that could have one. Time stands still
// while anything can run and no poll is untried; then it jumps to the next timer or event.
//
// While it lives, waits on its thread (Future::Await, StopAndWait, ...) run the simulation instead
// of blocking, so code written for real threads runs under it unchanged.
// Threads: the one that made it. Owns: nothing beside its actors.
class SimExecutor final : public internal::ExecutorBase, public WaitHook {
 public:
  explicit SimExecutor(uint64_t seed);
  ~SimExecutor() override;

  uint64_t seed() const { return seed_; }
  const Clock& clock() const override { return clock_; }
  absl::Time Now() const { return clock_.now; }

  // Runs until nothing can happen any more, however far away in virtual time. An actor whose polls
  // do not move, with no event pending, counts as nothing: it waits for what will not come.
  void RunUntilIdle();
  // Runs all that happens within `duration`, then sets the clock to its end.
  void RunFor(absl::Duration duration);
  // Runs until `done()` holds, nothing can happen any more, or the clock would pass `deadline` (it
  // is set to it then); returns done().
  bool RunUntil(absl::FunctionRef<bool()> done, absl::Time deadline);
  // One turn, or one jump in time if no turn is due and the jump does not pass `limit`. False if
  // neither.
  bool Step(absl::Time limit = absl::InfiniteFuture());

  // `source` shares the virtual time until removed.
  void AddEventSource(EventSource* source) { sources_.push_back(source); }
  void RemoveEventSource(EventSource* source) { std::erase(sources_, source); }

  // From now on; {}: nothing goes wrong any more.
  void SetFaults(const SimFaults& faults) { faults_ = faults; }

  // Randomness for faults and delays, from the same seed: below `bound`, which is positive.
  uint64_t Uniform(uint64_t bound) { return random_() % bound; }

  // WaitHook.
  bool WaitUntil(absl::FunctionRef<bool()> done, absl::Time deadline) override {
    return RunUntil(done, deadline);
  }
  // Executor.
  void Schedule(internal::ActorCell& cell) override { runnable_.push_back(&cell); }

 private:
  // Threads: the simulation's. Owns: nothing.
  struct VirtualClock final : Clock {
    absl::Time Now() const override { return now; }
    absl::Time now = absl::UnixEpoch() + absl::Hours(24 * 365);
  };

  // A turn that comes later. Threads: the simulation's. Owns: nothing.
  struct Delayed {
    absl::Time until;
    internal::ActorCell* cell;
  };

  bool Happens(uint64_t one_in) { return one_in > 0 && Uniform(one_in) == 0; }
  void RunTurn(internal::ActorCell& cell);
  internal::TurnOutcome RunTurnThatMayCrash(internal::ActorCell& cell);
  void RunDelayed();
  void RetryPolls();
  bool JumpToNextEvent(absl::Time limit);
  bool WaitUntilEmpty(absl::Time deadline) override;
  void OnEarlierTimer() override {}

  const uint64_t seed_;
  std::mt19937_64 random_;
  VirtualClock clock_;
  std::vector<internal::ActorCell*> runnable_;
  std::vector<Delayed> delayed_;
  SimFaults faults_;
  // Actors with work in flight: not polled, and polled without effect, since something last moved.
  std::vector<internal::RefPtr<internal::ActorCell>> untried_;
  std::vector<internal::RefPtr<internal::ActorCell>> tried_;
  std::vector<EventSource*> sources_;
  bool in_turn_ = false;
  WaitHook* const previous_hook_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_SIM_EXECUTOR_H_
