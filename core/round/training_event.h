// What a trainer tells a model's rounds of its training.
#ifndef PELTON_CORE_ROUND_TRAINING_EVENT_H_
#define PELTON_CORE_ROUND_TRAINING_EVENT_H_

#include <cstdint>
#include <type_traits>

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

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_TRAINING_EVENT_H_
