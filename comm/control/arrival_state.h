// Pairs the ranks of one job that arrive at about the same time.
#ifndef PELTON_COMM_CONTROL_ARRIVAL_STATE_H_
#define PELTON_COMM_CONTROL_ARRIVAL_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/control/coordinator_messages.h"
#include "core/base/ids.h"

namespace pelton {

// A state machine. A rank that asks is paired with a rank of its group that waits now, whatever the
// rounds of the two are, and of several with the one that it met longest ago; so nobody waits for a
// rank that has not come. Two ranks that met within their last (n - 1) / 2 other peers, 16 at most,
// would exchange what both have: they wait for a third one as long as one may come within their
// patience, and are paired with each other when none does. So a set of ranks that keeps to itself
// holds more than half of them, and there are no two.
//
// The patience of a rank is half of the median of the last intervals between its own questions: two
// ranks of one pace meet in every round, whatever the difference of their phases, because one of
// them comes within half an interval of the other. A rank is expected from 3/4 of its interval
// after its last question to twice that after it was last asking or answered, and nobody waits when
// nobody is expected. A rank that finds no peer goes on alone.
//
// Both ends get the same decision with the same number. A rank's last one is kept, so that a call
// that is repeated because its answer was lost gets it again. Every call is answered once, at its
// deadline at the latest, unless it is cancelled (ONCE-1).
// Source: Lian et al., Asynchronous Decentralized Parallel SGD, arXiv 1710.06952, from which it
// takes pairs by arrival; there the peer is drawn at random and averages beside its own training.
// Threads: one at a time. Owns: its groups and the calls that wait.
class ArrivalState {
 public:
  // Before a rank's interval is known, and the bounds of what follows from it.
  static constexpr absl::Duration kFirstPatience = absl::Seconds(1);
  static constexpr absl::Duration kLeastPatience = absl::Milliseconds(1);
  static constexpr absl::Duration kMostPatience = kMostPeerPatience;
  static constexpr size_t kIntervalsKept = 5;
  static constexpr size_t kPeersKept = 16;
  static constexpr size_t kGroupsKept = 256;

  explicit ArrivalState(WorldSize world_size) : world_size_(world_size) {}

  // Errors: InvalidArgument: members that are not ranks of the job, each once, `rank` among them,
  // or other ones than the group was asked for before; OutOfRange: a round before the rank's last
  // one; Aborted answers the call before, where this rank still waits in one; ResourceExhausted:
  // too many groups wait.
  void Ask(const Call& call, Rank rank, const FindPeerRequest& request, Outbox* outbox);
  // Its rank is not paired until it asks again.
  void Cancel(uint64_t call);
  // `rank` asks nothing more: nobody waits for it.
  void Leave(Rank rank, Outbox* outbox);
  void Expire(absl::Time now, Outbox* outbox);
  // Answers every call that waits.
  void Fail(const absl::Status& reason, Outbox* outbox);
  absl::Time NextDeadline() const { return deadlines_.Next(); }

 private:
  // Threads: one at a time. Owns: its lists.
  struct Member {
    std::optional<absl::Time> asked_at;  // first, for asked_round
    uint64_t asked_round = 0;
    absl::Time patient_until;                   // in that round
    absl::Time seen_at = absl::InfinitePast();  // asking, or answered
    std::deque<absl::Duration> intervals;       // the newest last
    std::vector<int32_t> peers;                 // places, each once, the one met last first
    std::optional<PeerMatch> decision;          // of asked_round
  };
  struct Waiting {
    int32_t place = 0;
    uint64_t call = 0;
    absl::Time until;
  };
  // Threads: one at a time. Owns: its lists.
  struct Group {
    std::vector<Rank> ranks;
    std::vector<Member> members;   // by place in `ranks`
    std::vector<Waiting> waiting;  // in the order of their arrival
    absl::Time began;
    uint64_t last_match = 0;
    uint64_t last_use = 0;
  };

  absl::Status Check(Rank rank, const FindPeerRequest& request) const;
  absl::Status MakeRoom();
  static void BeginRound(Member& member, uint64_t round, absl::Time now);
  // Decides all that can be decided at `now`.
  void Settle(Group& group, absl::Time now, Outbox* outbox);
  bool SettleOne(Group& group, bool only_fresh, absl::Time now, Outbox* outbox);
  // Of the group's waiting ranks that one to pair `index` with, `index` itself to leave it alone;
  // nothing if it is to wait.
  std::optional<size_t> PartnerOf(const Group& group, size_t index, absl::Time now) const;
  // Whether neither has met the other lately; by place.
  static bool AreFresh(const Group& group, int32_t one, int32_t other);
  // Whether a rank that does not wait yet may come in time; with `fresh`, one that is.
  bool MayCome(const Group& group, const Waiting& waiting, bool fresh, absl::Time now) const;
  bool MayCome(const Group& group, size_t place, absl::Time by, absl::Time now) const;
  void Decide(Group& group, size_t index, size_t partner, Outbox* outbox);
  void Answer(const Waiting& waiting, const PeerMatch& match, Outbox* outbox);
  void Forget(const Waiting& waiting);

  const WorldSize world_size_;
  std::map<CommunicatorId, Group> groups_;
  absl::flat_hash_map<uint64_t, CommunicatorId> group_of_;  // by call that waits
  DeadlineQueue deadlines_;
  std::set<Rank> left_;
  absl::Time now_ = absl::InfinitePast();  // of the last event
  uint64_t uses_ = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_ARRIVAL_STATE_H_
