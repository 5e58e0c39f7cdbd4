// What is done when the outermost backward ends, in an order that does not depend on who asked
// first.
#ifndef PELTON_TORCH_BINDINGS_CSRC_END_OF_BACKWARD_H_
#define PELTON_TORCH_BINDINGS_CSRC_END_OF_BACKWARD_H_

#include <cstdint>
#include <functional>

namespace pelton::torch_bindings {

// In this order, each for all models before the next for any: ranks may run several models in one
// backward in different orders, and where one waits for a model that another rank has not launched
// yet, because it waits for the other model first, both would wait for ever.
enum class EndStage : uint8_t {
  kLaunch,  // the rest of a round
  kSettle,  // what must be through before a round ends
  kWait,    // for it
  kAdopt,   // what the ranks agreed on after it
  kAfter,   // whatever needs complete rounds
};

// Queues `callback` with the backward that runs on this thread. Exceptions of a callback leave the
// backward, and those that have not run are dropped. Called without the GIL.
void QueueAtEnd(EndStage stage, std::function<void()> callback);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_END_OF_BACKWARD_H_
