// One communicator of a simulated world, with all of its ranks: who waits for whom.
#ifndef PELTON_COMM_TRANSPORT_SIM_SIM_GROUP_H_
#define PELTON_COMM_TRANSPORT_SIM_SIM_GROUP_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/group.h"
#include "comm/transport/operation_check.h"
#include "comm/transport/sim/network.h"
#include "comm/transport/sim/outcome.h"
#include "core/actor/waker.h"
#include "core/pipeline/operation.h"

namespace pelton {

// A state machine without clock, lock or thread: the fabric calls it with the time. A collective
// begins when it is the oldest of every rank and visible on all of them; its outcome is computed
// then and copied into each rank's target at that rank's completion. A send and a receive complete
// alike when both are visible. Ranks are those of the group. Threads: one at a time. Owns: the
// state of all ranks' operations, never their memory.
class SimGroup {
 public:
  // Collectives of other kinds than `native_kinds` run as programs. `network` and `events` outlive
  // this object.
  SimGroup(CommunicatorId id, Group group, KindSet native_kinds, Network& network,
           EventQueue& events);
  SimGroup(const SimGroup&) = delete;
  SimGroup& operator=(const SimGroup&) = delete;

  CommunicatorId id() const { return id_; }
  const Group& group() const { return group_; }
  bool all_closed() const { return closed_count_ == members_.size(); }

  // As the communicator's methods of the same name, on `rank`. Peers see the operation from
  // `visible_at` on.
  absl::StatusOr<Completion> Launch(Rank rank, const Operation& operation, absl::Time now,
                                    absl::Time visible_at);
  OperationRunner::State Query(Rank rank, Completion completion) const;
  std::vector<Rank> Missing(Rank rank) const;
  absl::StatusOr<std::optional<Rank>> FindSender(Rank rank, int32_t tag);
  void Abort(Rank rank, const absl::Status& reason, absl::Time now);

  // `rank` ends for `reason`; the peers that are still there get `notice`.
  void End(Rank rank, const absl::Status& reason, const absl::Status& notice, absl::Time now);
  // `rank`'s communicator is destroyed. Peers that have, or get, an operation that needs it fail.
  void Close(Rank rank, absl::Time now);
  // Lets an event of this group happen.
  void Run(const SimEvent& event, absl::Time now);

  // Operations of `rank` that ended so far, in any way.
  uint64_t moves(Rank rank) const { return At(rank).moves; }

  // On which the thread of a rank sleeps.
  Waker& waker(Rank rank) { return *At(rank).waker; }

 private:
  struct Flight {
    Operation operation;
    OperationMemory memory;
    bool in_flight = false;
    bool visible = false;
    bool started = false;
    // Shared by the ranks of a collective: the last one to complete frees it.
    std::shared_ptr<const Outcome> outcome;
  };
  struct PeerTag {
    int32_t peer;
    int32_t tag;
    friend auto operator<=>(const PeerTag&, const PeerTag&) = default;
  };
  using Waiting = std::map<PeerTag, std::deque<uint64_t>>;
  struct Member {
    CompletionTable completions;
    std::vector<Flight> flights;  // by place
    uint64_t launched_collectives = 0;
    uint64_t visible_collectives = 0;
    std::deque<uint64_t> collectives;  // not done, oldest first
    Waiting sends;                     // visible and without a partner
    Waiting recvs;
    std::map<PeerTag, uint64_t> launched_pairs[2];  // sends, receives
    absl::Time last_visible_at = absl::InfinitePast();
    absl::Status ended;
    bool closed = false;
    int32_t next_sender = 0;  // whom FindSender asks first
    uint64_t moves = 0;
    std::unique_ptr<Waker> waker = std::make_unique<Waker>();
  };
  struct Place {
    Rank rank;
    uint64_t ticket;
  };

  Member& At(Rank rank) { return members_[static_cast<size_t>(rank.value())]; }
  const Member& At(Rank rank) const { return members_[static_cast<size_t>(rank.value())]; }
  Flight* Find(Place place);  // null: not in flight
  Flight& FlightAt(Place place);
  const Flight* OldestInFlight(const Member& member) const;
  Rank WorldRank(Rank rank) const { return group_.members[static_cast<size_t>(rank.value())]; }

  absl::Status Check(Rank rank, const Operation& operation) const;
  Place Enqueue(Rank rank, Operation operation, OperationMemory memory);
  void Finish(Flight& flight);
  void Post(Place place, absl::Time now);
  void PostPair(Place place, absl::Time now);
  void OnHeadReady(absl::Time now);
  void StartCollective(absl::Time now);
  void StartPair(Place send, Place recv, absl::Time now);
  absl::Status DifferenceOfHeads();
  void Complete(Place place, const absl::Status& status, absl::Time now);
  void FailAll(Rank rank, const absl::Status& reason);
  void FailIfPeerClosed(Rank rank);
  // One that has closed and that `operation`, which has not begun, cannot do without.
  std::optional<Rank> ClosedPartnerOf(const Operation& operation) const;

  const CommunicatorId id_;
  const Group group_;
  const KindSet native_kinds_;
  Network& network_;
  EventQueue& events_;
  std::vector<Member> members_;
  size_t ready_heads_ = 0;  // ranks whose oldest collective is visible and not started
  size_t closed_count_ = 0;
  size_t in_flight_ = 0;  // operations, of all ranks
  bool ended_ = false;    // on some rank: no collective can begin any more
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_SIM_SIM_GROUP_H_
