#include "comm/hierarchy/layout.h"

#include <algorithm>
#include <map>

namespace pelton::hierarchy {

Layout::Layout(const Group& group, const std::vector<int32_t>& host_of) : members_(group.members) {
  std::map<int32_t, int32_t> number_of;
  for (const Rank member : group.members) {
    const auto [entry, is_new] =
        number_of.try_emplace(host_of[member.value()], static_cast<int32_t>(hosts_.size()));
    if (is_new) hosts_.emplace_back();
    std::vector<int32_t>& host = hosts_[entry->second];
    local_rank_of_.push_back(static_cast<int32_t>(host.size()));
    host.push_back(static_cast<int32_t>(host_of_.size()));
    host_of_.push_back(entry->second);
  }
  rail_count_ = world_size();
  for (const std::vector<int32_t>& host : hosts_) {
    rail_count_ = std::min(rail_count_, static_cast<int32_t>(host.size()));
  }
}

std::vector<Rank> Layout::Rail(int32_t rail) const {
  std::vector<Rank> ranks;
  for (const std::vector<int32_t>& host : hosts_) ranks.emplace_back(host[rail]);
  return ranks;
}

Group GroupInside(const Group& group, Rank rank, const std::vector<int32_t>& host_of) {
  const int32_t host = host_of[rank.value()];
  Group inside{{}, group.generation};
  for (const Rank member : group.members) {
    if (host_of[member.value()] != host) continue;
    const auto place = std::count(host_of.begin(), host_of.begin() + member.value(), host);
    inside.members.emplace_back(static_cast<int32_t>(place));
  }
  return inside;
}

}  // namespace pelton::hierarchy
