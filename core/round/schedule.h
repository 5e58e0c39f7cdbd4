// What an algorithm's rounds are made of: which tensors, when, and what becomes of the results.
#ifndef PELTON_CORE_ROUND_SCHEDULE_H_
#define PELTON_CORE_ROUND_SCHEDULE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pelton {

// Which of a trainer's tensors are communicated.
enum class Source : uint8_t {
  kGradients,
  kMomenta,  // an optimizer's first moments, updated from each gradient
  kWeights,
};

// Which of the trainer's events begin a round and end it; core/round/trigger.h executes them.
enum class TriggerKind : uint8_t {
  kWhenReady,  // each tensor as it becomes final in the backward pass; complete at its end
  kInForward,  // from before the forward pass; merged after the backward pass
  kAfterStep,  // from after an optimizer's step; merged `delay` steps later
  kTimer,      // beside training; merged between an optimizer's step and the next forward pass
  kOnCall,     // begun and merged when the trainer asks for it
};

// "weights", and "after_step": their names in Python.
inline absl::string_view NameOf(Source source) {
  switch (source) {
    case Source::kGradients:
      return "gradients";
    case Source::kMomenta:
      return "momenta";
    case Source::kWeights:
      return "weights";
  }
  return "unknown source";
}
inline absl::string_view NameOf(TriggerKind kind) {
  switch (kind) {
    case TriggerKind::kWhenReady:
      return "when_ready";
    case TriggerKind::kInForward:
      return "in_forward";
    case TriggerKind::kAfterStep:
      return "after_step";
    case TriggerKind::kTimer:
      return "timer";
    case TriggerKind::kOnCall:
      return "on_call";
  }
  return "unknown trigger";
}

// A tensor becomes kept * tensor + taken * result, once its whole round is complete (COMMIT-1):
// {0, 1} replaces it, {1, 1} adds to it what changed meanwhile.
// Threads: a value. Owns: nothing.
struct CommitRule {
  double kept = 0;
  double taken = 1;
};

// Threads: a value. Owns: nothing.
struct Schedule {
  Source source = Source::kGradients;
  TriggerKind trigger = TriggerKind::kWhenReady;
  // Of kInForward and kAfterStep: rounds are at the steps first_step, first_step + interval and so
  // on; steps count from 1. Pipelines count rounds, not steps.
  uint64_t first_step = 1;
  uint64_t interval = 1;
  uint64_t delay = 0;  // of kAfterStep; below the interval
  // Of kTimer: from the end of a round to the start of the next.
  absl::Duration pause = absl::ZeroDuration();
  // Whether each round is one of all ranks. Where it is not, which only kTimer can be, a rank's
  // rounds are its own: no stage launches a collective in them, every bucket runs in each, and
  // ranks count them apart. Once all ranks have been asked to stop, each has one more, in
  // RoundMode::kCollecting.
  bool ranks_share_rounds = true;
  CommitRule commit = {};
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_SCHEDULE_H_
