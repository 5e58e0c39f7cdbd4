// CAF's side of the actor benchmarks.
#ifndef PELTON_BENCHMARKS_ACTOR_CAF_RUNTIME_H_
#define PELTON_BENCHMARKS_ACTOR_CAF_RUNTIME_H_

#include <memory>

#include "benchmarks/actor/measurement.h"

namespace pelton::benchmarks {

// Null where CAF was not installed when this was built.
std::unique_ptr<Runtime> MakeCafRuntime();

}  // namespace pelton::benchmarks

#endif  // PELTON_BENCHMARKS_ACTOR_CAF_RUNTIME_H_
