#include "comm/group.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::Status CheckGroup(const Group& group, WorldSize world_size) {
  std::vector<bool> seen(world_size.value());
  for (const Rank member : group.members) {
    if (member.value() < 0 || member.value() >= world_size.value()) {
      return absl::InvalidArgumentError(absl::StrCat("group: member ", member.value(),
                                                     " is not in [0, ", world_size.value(), ")"));
    }
    if (seen[member.value()]) {
      return absl::InvalidArgumentError(
          absl::StrCat("group: member ", member.value(), " is there twice"));
    }
    seen[member.value()] = true;
  }
  if (group.members.empty()) return absl::InvalidArgumentError("group: has no member");
  return absl::OkStatus();
}

absl::Status CheckGroup(const Group& group, WorldSize world_size, Rank rank) {
  RETURN_IF_ERROR(CheckGroup(group, world_size));
  if (group.RankOf(rank)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("group: rank ", rank.value(), " is not one of its members"));
}

}  // namespace pelton
