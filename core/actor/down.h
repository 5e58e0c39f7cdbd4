// What a watcher hears when an actor ends.
#ifndef PELTON_CORE_ACTOR_DOWN_H_
#define PELTON_CORE_ACTOR_DOWN_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/base/ids.h"

namespace pelton {

// Name of an actor inside its process; the same for all of its incarnations.
using ActorId = Id<struct ActorIdTag, uint64_t>;

// Sent once per Watch, when the actor has ended for good (not when it is restarted), or at once if
// it has already.
struct Down {
  ActorId who;
  std::string name;
  absl::Status why;  // OK after an orderly stop; kNotFound if it had ended before it was watched
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_DOWN_H_
