// An ordered set of ranks at one generation.
#ifndef PELTON_COMM_GROUP_H_
#define PELTON_COMM_GROUP_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/base/ids.h"

namespace pelton {

// `members[i]` is the rank in the world of the process that is rank i of the group.
// Threads: a value. Owns: its list.
struct Group {
  std::vector<Rank> members;
  Generation generation;

  // All ranks of a world, in order.
  static Group World(WorldSize world_size, Generation generation = Generation(1)) {
    Group group{{}, generation};
    for (int32_t rank = 0; rank < world_size.value(); ++rank) group.members.emplace_back(rank);
    return group;
  }
  // These ranks of the world, in this order.
  template <typename Numbers = std::vector<int32_t>>
  static Group Of(const Numbers& ranks, Generation generation = Generation(1)) {
    return {{ranks.begin(), ranks.end()}, generation};
  }

  WorldSize size() const { return WorldSize(static_cast<int32_t>(members.size())); }

  // Rank inside the group of a rank of the world; nothing for ranks outside.
  std::optional<Rank> RankOf(Rank world_rank) const {
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == world_rank) return Rank(static_cast<int32_t>(i));
    }
    return std::nullopt;
  }
};

// Whether `group` can be opened in a world of this size. Errors: InvalidArgument: names the member
// that is outside the world or there twice; the group is empty.
absl::Status CheckGroup(const Group& group, WorldSize world_size);
// Also whether `rank` of the world is in it.
absl::Status CheckGroup(const Group& group, WorldSize world_size, Rank rank);

}  // namespace pelton

#endif  // PELTON_COMM_GROUP_H_
