// The communicators of one group by the tiers of its hosts, and one runner over all of them.
#ifndef PELTON_COMM_TIERS_H_
#define PELTON_COMM_TIERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/topology/peer_source.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"

namespace pelton {

class WindowSource;  // comm/window/window_source.h

// Threads: a value. Owns: nothing.
struct Tiers {
  // Of a group whose hosts are of no interest.
  static Tiers Of(Communicator& all) {
    Tiers tiers;
    tiers.all = &all;
    return tiers;
  }

  Communicator* all = nullptr;
  // The group's ranks on this host, the lowest of which is rank 0 and leads them; null where the
  // algorithm is not hierarchical.
  Communicator* host = nullptr;
  // The hosts' leaders, in the group's order; null on the other ranks.
  Communicator* leaders = nullptr;
  std::vector<int32_t> host_sizes;  // ranks of each host, by its leader's rank in `leaders`
  // By rank in `host` and in `leaders`: the rank in `all`.
  std::vector<Rank> host_ranks;
  std::vector<Rank> leader_ranks;
  // Chooses peers among the leaders, or among all ranks where the tiers are not open; null: nobody
  // does, ranks follow a rule of their own (comm/topology/matching.h).
  PeerSource* peers = nullptr;
  // Finds peers among the same as they arrive; null: they are agreed on.
  Matchmaker* matchmaker = nullptr;
  // Makes windows among all ranks; null unless Algorithm::UsesWindows.
  WindowSource* windows = nullptr;
  // Where the buckets are, and so what stages keep beside them; null: in the host's memory.
  DeviceQueue* device = nullptr;

  bool are_open() const { return host != nullptr; }
  bool is_leader() const { return leaders != nullptr; }
};

// Runs each operation on the communicator that `operation.communicator` names, or on `tiers.all`
// where that is none of them. Orders hold within a tier. Parks on the tier of the oldest operation
// in flight: stages use the tiers one after the other.
// Threads: as OperationRunner. Owns: nothing of the communicators.
class TieredRunner final : public OperationRunner {
 public:
  explicit TieredRunner(const Tiers& tiers);

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  State Query(Completion completion) override;
  State Follow(Completion completion, Stream& stream) override;
  void Park(absl::Time until) override;
  void Wake() override;
  void Abort(const absl::Status& reason) override;
  // In the numbers of the communicator with all ranks.
  std::vector<Rank> Missing() const override;

  // For memory that the peers of any tier are to reach.
  absl::Status Register(const Region& region);
  void Deregister(RegionId region);

 private:
  void Add(Communicator* tier, const std::vector<Rank>& ranks);
  // A completion names its tier, too, and is no count of launches.
  Communicator& TierOf(Completion completion) const;
  Completion OnTier(Completion completion) const;
  size_t IndexOf(const Operation& operation) const;
  void ForgetDone();
  // That of the oldest operation in flight, else the one with all ranks.
  Communicator& Busy() const;

  std::vector<Communicator*> tiers_;  // the one with all ranks first
  // By tier, and by rank there: the rank among all. Empty for the one with all.
  std::vector<std::vector<Rank>> ranks_;
  // In launch order; some may be done. Of the thread that launches, which is the one that parks.
  std::deque<Completion> in_flight_;
};

}  // namespace pelton

#endif  // PELTON_COMM_TIERS_H_
