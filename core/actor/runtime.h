// All of the actor runtime, for programs that want nothing else of Pelton (docs/actors.md).
#ifndef PELTON_CORE_ACTOR_RUNTIME_H_
#define PELTON_CORE_ACTOR_RUNTIME_H_

#include "core/actor/actor.h"            // IWYU pragma: export
#include "core/actor/actor_ref.h"        // IWYU pragma: export
#include "core/actor/borrow.h"           // IWYU pragma: export
#include "core/actor/context.h"          // IWYU pragma: export
#include "core/actor/executor_base.h"    // IWYU pragma: export
#include "core/actor/monitor.h"          // IWYU pragma: export
#include "core/actor/pool_executor.h"    // IWYU pragma: export
#include "core/actor/promise.h"          // IWYU pragma: export
#include "core/actor/sim_executor.h"     // IWYU pragma: export
#include "core/actor/spawn.h"            // IWYU pragma: export
#include "core/actor/thread_executor.h"  // IWYU pragma: export
#include "core/actor/when.h"             // IWYU pragma: export

#endif  // PELTON_CORE_ACTOR_RUNTIME_H_
