// Something outside the actors that shares a simulation's virtual time: a simulated network.
#ifndef PELTON_CORE_ACTOR_EVENT_SOURCE_H_
#define PELTON_CORE_ACTOR_EVENT_SOURCE_H_

#include "absl/time/time.h"

namespace pelton {

// Threads: the simulation's. Owns: its pending events.
class EventSource {
 public:
  virtual ~EventSource() = default;
  // When its next event is due; infinite if it has none.
  virtual absl::Time NextEventTime() = 0;
  // Lets all events happen that are due at `now`.
  virtual void RunDue(absl::Time now) = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_EVENT_SOURCE_H_
