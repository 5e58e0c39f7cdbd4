// Several hosts' ranks in one thread and in virtual time, over simulated wires.
#ifndef PELTON_COMM_HIERARCHY_TEST_HOSTS_H_
#define PELTON_COMM_HIERARCHY_TEST_HOSTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "comm/hierarchy/hierarchical_communicator.h"
#include "comm/hierarchy/layout.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/clock.h"

namespace pelton::hierarchy {

// A communicator of all ranks; each host has a fabric of its own. At least two hosts.
// Threads: the test's. Owns: the fabrics and communicators.
class TestHosts {
 public:
  // `host_of[r]` is the number of the host of rank r, from 0. `seed` is of the wires' jitter.
  explicit TestHosts(const std::vector<int32_t>& host_of, uint64_t seed = 0);

  int32_t size() const { return layout_.world_size(); }
  const Layout& layout() const { return layout_; }
  Communicator& at(int32_t rank) { return *communicators_[rank]; }
  void Close(int32_t rank) { communicators_[rank].reset(); }
  // Nobody drives the rank from now on, which lives.
  void Stop(int32_t rank) { stopped_.insert(rank); }
  SimFabric& between() { return *between_; }
  // Units: bytes from one host to all others, of everything so far.
  uint64_t BytesFrom(int32_t host);

  // Lets all ranks go on, and time pass, until nothing moves any more.
  void RunAll();
  // Calls `launch` for each rank, lets them go on, and returns what became of it, by rank.
  std::vector<absl::Status> Run(
      const std::function<absl::StatusOr<Completion>(Communicator&)>& launch);

 private:
  class VirtualClock final : public Clock {
   public:
    absl::Time Now() const override { return now; }
    absl::Time now = absl::FromUnixSeconds(1'000'000);
  };

  bool RunWhatIsDue();
  bool RunNextEvent();

  const Layout layout_;
  VirtualClock clock_;
  std::vector<std::unique_ptr<SimFabric>> inside_;  // by host
  std::unique_ptr<SimFabric> between_;
  std::vector<std::unique_ptr<HierarchicalCommunicator>> communicators_;
  std::set<int32_t> stopped_;
};

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_TEST_HOSTS_H_
