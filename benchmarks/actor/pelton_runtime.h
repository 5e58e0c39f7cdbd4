// Pelton's side of the actor benchmarks.
#ifndef PELTON_BENCHMARKS_ACTOR_PELTON_RUNTIME_H_
#define PELTON_BENCHMARKS_ACTOR_PELTON_RUNTIME_H_

#include <memory>

#include "benchmarks/actor/measurement.h"

namespace pelton::benchmarks {

// With permits, producers reserve room for 256 messages at a time; without, every Send reserves its
// own. Both wait (yielding) while the mailbox of 4096 is full.
enum class Sending { kPermits, kSend };

std::unique_ptr<Runtime> MakePeltonRuntime(Sending sending);

}  // namespace pelton::benchmarks

#endif  // PELTON_BENCHMARKS_ACTOR_PELTON_RUNTIME_H_
