// Turns what a trainer does into the beginnings and ends of rounds.
#ifndef PELTON_CORE_ROUND_TRIGGER_H_
#define PELTON_CORE_ROUND_TRIGGER_H_

#include <cstdint>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "core/round/schedule.h"

namespace pelton {

enum class EventKind : uint8_t {
  kForwardBegins,     // in training mode, with gradients
  kEvaluationBegins,  // a forward pass in evaluation mode, with gradients; maybe on this rank alone
  kBackwardBegins,    // its first gradient is there; a forward pass need not have been seen
  kTensorReady,       // after kBackwardBegins: a tensor is final
  kBackwardEnds,      // the outermost one
  kBeforeStep,        // an optimizer of communicated tensors is about to step
  kAfterStep,
  kStepSkipped,  // a gradient scaler has skipped a step, perhaps on this rank alone
  kCall,         // the trainer asks for a round
};

// One event. It has a fixed size and no pointer, so that it may be copied and kept as it is. With a
// daemon the port and its triggers stay in the trainer's process, and rounds cross (backend/link).
// Threads: a value. Owns: nothing.
struct TrainingEvent {
  EventKind kind = EventKind::kCall;
  // False inside no_sync: what happens there is local.
  bool is_synchronized = true;
  // Of forward passes: a backward pass makes it, to compute again what a checkpoint did not keep.
  bool is_recomputed = false;
  // Of kBackwardBegins: the forward pass was in evaluation mode.
  bool is_evaluation = false;
  // Of kBackwardEnds: another backward pass may follow that needs the weights as they are.
  bool may_go_on = false;
  // Of steps: the optimizer is one of those that the algorithm was given.
  bool is_given = true;
  int32_t slot = 0;          // of kTensorReady
  uint64_t optimizer = 0;    // of steps: which one; any number that is its own
  uint32_t given_count = 1;  // of steps: how many optimizers the algorithm was given
  uint32_t reserved[9] = {};
};
static_assert(sizeof(TrainingEvent) == 64 && std::is_trivially_copyable_v<TrainingEvent>);

// What is due.
enum class RoundAction : uint8_t {
  kBegin,
  kFinish,           // wait for the open round and merge its results; nothing without one
  kNoteTensors,      // the open round's results are merged later: remember what the tensors are
  kFinishUnchanged,  // kFinish, but fail if the tensors are not what was noted
  kClaim,            // of rounds by a timer: the tensors are the trainer's
  kRelease,          // until here
  kResume,           // the timer's rounds go on
};
using RoundActions = absl::InlinedVector<RoundAction, 4>;

// Decides when rounds begin and end, by the trainer's events and nothing else, so that all ranks
// whose trainers do the same decide the same. What happens inside no_sync does not count: it begins
// no round and is no step.
//
// kInForward: a step is an iteration. It begins with the first forward pass after an optimizer's
// step, or after a backward pass where no optimizer stepped (as when a gradient scaler skips one);
// several forward passes before one backward pass are one iteration. Where no forward pass was seen
// in training mode, the first gradient of a backward pass begins one. Results are merged when the
// backward pass ends, so that whatever changes the weights after it, announced or not, changes the
// results.
//
// Whatever the trigger is, a step is complete when all optimizers that the algorithm was given have
// stepped, or have been skipped, since the last one was; where none was given, with the step of
// any.
//
// kAfterStep: a complete step counts. Where only some optimizers have stepped, a step is counted at
// the next forward pass in training mode, or when one of them is about to step again.
//
// kTimer: the trainer holds the tensors from each forward pass to the optimizer's step, or, where
// no optimizer steps after a backward pass, to the next forward pass. Inside no_sync they are not
// given free: what has been accumulated there was taken at these weights. Where a backward pass
// comes without a forward pass that was seen, they are held all the time but for a moment after
// each step.
//
// A copy of it is what it was, so that a caller whose action failed can go back.
// Threads: a value. Owns: nothing.
class Trigger {
 public:
  // `steps` were counted before, by another one; a delayed round may be open that began among them.
  // `makes_equal`: all ranks hold the same once results are merged.
  Trigger(const Schedule& schedule, bool makes_equal, uint64_t steps, bool is_open);

  // What is due because of `event`, in this order.
  RoundActions On(const TrainingEvent& event);
  // A round that was open was finished for another reason than an event.
  void RoundEnded() { is_open_ = false; }

  // kTimer: the trainer wants rounds no more, then wants them again. StayStopped is for rounds that
  // have begun on no rank: Stop takes part in one, because others may have begun it.
  RoundActions Stop();
  RoundActions Resume();
  void StayStopped() { is_wanted_ = false; }
  // Whether rounds go on, or will with the first forward pass.
  bool is_wanted() const { return is_wanted_; }

  uint64_t steps() const { return steps_; }
  // Whether the last event completed a step.
  bool completed_step() const { return completed_step_; }
  // Whether what is communicated may differ between ranks from one round to the next.
  bool may_differ() const { return schedule_.trigger != TriggerKind::kWhenReady; }
  // Whether, now that a step has ended, all ranks hold the same.
  bool tensors_are_equal() const { return !may_differ() || tensors_are_equal_; }
  // Whether a step now is in step with the other ranks only if a backward pass has been since the
  // last one: each backward pass is a round, or an iteration's round has not begun.
  bool needs_backward() const {
    if (schedule_.trigger == TriggerKind::kWhenReady) return true;
    return schedule_.trigger == TriggerKind::kInForward && !is_in_iteration_;
  }

 private:
  RoundActions OnInForward(const TrainingEvent& event);
  RoundActions OnAfterStep(const TrainingEvent& event);
  RoundActions OnTimer(const TrainingEvent& event);
  void BeginIteration(RoundActions& actions);
  void CountStep(RoundActions& actions);
  // Notes the step that has ended, or was skipped; whether it completes one of the model's.
  bool Complete(const TrainingEvent& event);
  // Whether the optimizer has stepped since the last step was counted; whether any has.
  bool HasStepped(uint64_t optimizer) const;
  bool HasUncounted() const;
  // The first forward pass or gradient starts the timer.
  bool Start(RoundActions& actions);
  void Free(RoundActions& actions);
  bool IsDue() const;

  Schedule schedule_;
  bool makes_equal_;
  uint64_t steps_;
  // The given optimizers that have stepped since the last step was complete.
  struct Stepped {
    uint64_t optimizer;
    bool is_counted;  // in a step that had to be counted before all had stepped
  };
  absl::InlinedVector<Stepped, 2> have_stepped_{};
  bool completed_step_ = false;
  bool has_backward_ = false;  // since the iteration began; by a timer: since tensors were free
  // kInForward.
  bool is_in_iteration_ = false;
  bool is_announced_ = false;  // the iteration, by a forward pass
  // kAfterStep.
  bool is_open_;           // a delayed round
  uint64_t begun_at_ = 0;  // the open round, at this step
  bool tensors_are_equal_ = false;
  // kTimer.
  bool has_begun_ = false;
  bool is_wanted_ = true;
  bool saw_forward_ = false;  // since the tensors were free
  bool forwards_are_seen_ = true;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_TRIGGER_H_
