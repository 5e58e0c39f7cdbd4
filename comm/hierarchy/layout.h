// Where the ranks of a group are: which share a host, and how the hosts' ranks line up.
#ifndef PELTON_COMM_HIERARCHY_LAYOUT_H_
#define PELTON_COMM_HIERARCHY_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "comm/group.h"
#include "core/base/ids.h"

namespace pelton::hierarchy {

// Ranks are those of the group and hosts are numbered in the order of their first rank, so the
// layout is the same on all ranks. Rail l is the l-th rank of every host; there are as many rails
// as ranks on the smallest host, so that each rail has a rank everywhere and the rails together
// use all wires. Threads: immutable. Owns: its lists.
class Layout {
 public:
  // `host_of[r]` is any number for the host of world rank r.
  Layout(const Group& group, const std::vector<int32_t>& host_of);

  int32_t world_size() const { return static_cast<int32_t>(host_of_.size()); }
  int32_t host_count() const { return static_cast<int32_t>(hosts_.size()); }
  int32_t rail_count() const { return rail_count_; }
  int32_t HostOf(int32_t rank) const { return host_of_[rank]; }
  // As which errors speak of `rank`.
  Rank WorldRankOf(int32_t rank) const { return members_[rank]; }
  // Number of `rank` among those of its host.
  int32_t LocalRankOf(int32_t rank) const { return local_rank_of_[rank]; }
  // The ranks of a host, in the group's order.
  const std::vector<int32_t>& RanksOn(int32_t host) const { return hosts_[host]; }
  bool SameHost(int32_t a, int32_t b) const { return host_of_[a] == host_of_[b]; }
  // The rail's ranks, by host.
  std::vector<Rank> Rail(int32_t rail) const;

 private:
  std::vector<Rank> members_;           // by rank
  std::vector<int32_t> host_of_;        // by rank
  std::vector<int32_t> local_rank_of_;  // by rank
  std::vector<std::vector<int32_t>> hosts_;
  int32_t rail_count_ = 0;
};

// The group of the members that share the host of `rank`, in the numbers of a transport of that
// host's ranks alone: the i-th of them in the world's order is its rank i. All are world ranks.
Group GroupInside(const Group& group, Rank rank, const std::vector<int32_t>& host_of);

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_LAYOUT_H_
