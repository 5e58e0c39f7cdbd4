#include "core/actor/turn_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace pelton {

std::vector<std::string> TurnWatch::Look(const std::vector<LivingActor>& actors, absl::Time now) {
  const absl::flat_hash_map<ActorId, Seen> before = std::exchange(in_turn_, {});
  std::vector<std::string> lines;
  for (const LivingActor& actor : actors) {
    if (!actor.is_in_turn) continue;
    Seen seen{actor.turns, now, false};
    const auto last = before.find(actor.id);
    if (last != before.end() && last->second.turns == actor.turns) seen = last->second;
    if (!seen.is_told && now - seen.since >= limit_) {
      seen.is_told = true;
      lines.push_back(
          absl::StrCat(actor.name, actor.name.empty() ? "" : ", ", actor.what,
                       " has been in one turn for more than ",
                       absl::FormatDuration(absl::Trunc(now - seen.since, absl::Seconds(1))), "; ",
                       actor.mailbox_used, " messages wait for it"));
    }
    in_turn_.emplace(actor.id, seen);
  }
  return lines;
}

}  // namespace pelton
