// Finds actors that block a turn for too long.
#ifndef PELTON_CORE_ACTOR_TURN_WATCH_H_
#define PELTON_CORE_ACTOR_TURN_WATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "core/actor/actor.h"
#include "core/actor/executor_base.h"

namespace pelton {

// A turn that two looks find unfinished has lasted for at least the time between them. Costs the
// actors nothing: it compares how many turns each has had.
// Threads: one at a time. Owns: what it saw last.
class TurnWatch {
 public:
  explicit TurnWatch(absl::Duration limit) : limit_(limit) {}

  // To be called now and then, with LivingActors(). A line for each actor that has been in one turn
  // for the limit or longer, once for each such turn.
  std::vector<std::string> Look(const std::vector<LivingActor>& actors, absl::Time now);

 private:
  struct Seen {
    uint32_t turns;
    absl::Time since;
    bool is_told;
  };

  const absl::Duration limit_;
  absl::flat_hash_map<ActorId, Seen> in_turn_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_TURN_WATCH_H_
