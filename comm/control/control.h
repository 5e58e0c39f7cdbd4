// The seam to the control plane: how the ranks of a job meet, agree, watch each other and part.
#ifndef PELTON_COMM_CONTROL_CONTROL_H_
#define PELTON_COMM_CONTROL_CONTROL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/host_identity.h"
#include "comm/control/key_value.h"
#include "comm/topology/matching.h"
#include "comm/transport/transport.h"
#include "core/base/ids.h"

namespace pelton {

inline constexpr uint32_t kControlProtocolVersion = 5;

// The longest that a rank is left waiting for a peer that may come (see Control::FindPeer).
inline constexpr absl::Duration kMostPeerPatience = absl::Seconds(5);

struct JoinRequest {
  std::string job;
  Rank rank;
  WorldSize world_size;
  uint32_t protocol_version = kControlProtocolVersion;
  HostIdentity host;
};

struct Member {
  Rank rank;
  HostIdentity host;
};

// The ranks of a job at one generation. Threads: a value. Owns: its list.
struct Membership {
  Generation generation;
  std::vector<Member> members;  // by rank
};

// One rank's part in an all-gather. Threads: a value. Owns: its parts.
struct AllGatherRequest {
  std::string name;
  std::string value;
  std::vector<Rank> members = {};  // each once, the caller one of them; empty: all ranks
};

// By place among the members. Threads: a value. Owns: a share of the values, which the answers to
// all members have in common: a copy each would take the square of the world's size.
struct AllGatherResult {
  std::shared_ptr<const std::vector<std::string>> values;
};

// A question for the peers of a group in one step. Threads: a value. Owns: its list.
struct SelectPeersRequest {
  CommunicatorId group = {};  // that the ranks exchange on; each has steps of its own
  std::vector<Rank> members;  // each once, the caller one of them; in the same order on all
  PeerPolicy policy = PeerPolicy::kRandomMatching;
  uint64_t step = 0;
};

// A question for a peer among those that are there now. Threads: a value. Owns: its list.
struct FindPeerRequest {
  CommunicatorId group;  // that the ranks exchange on; tells one model's questions from another's
  std::vector<Rank> members;  // each once, the caller one of them; in the same order on all
  uint64_t round = 0;         // of the caller's own; other ranks may be at others
};

// The same on both ends but for the peer.
struct PeerMatch {
  Rank peer;            // place among the members; the caller's own: it goes on alone
  uint64_t number = 0;  // among the group's matches, from 1
};

// What a rank may ask of the coordinator, and what each question is answered with, in the same
// order; every type is there once. docs/control_plane.md lists what one more takes. Where trainers
// are replaced, a daemon changes the members named `keys` and `name` of any question, so that it
// does not meet those of the trainers before (backend/link/call_desk.cc).
using ControlQuestion =
    std::variant<KeyValueRequest, AllGatherRequest, SelectPeersRequest, FindPeerRequest>;
using ControlAnswer = std::variant<KeyValueResult, AllGatherResult, Matching, PeerMatch>;

// What a rank is told without having asked.
struct Order {
  enum class Kind {
    kAbort,            // `culprit` died or reported a failure: end what is under way with `reason`
    kPeerLeft,         // `culprit` said goodbye: what still waits for it cannot succeed
    kCoordinatorLost,  // no more orders will come; no culprit
    kPeerAbsent,       // another process is awaited in `culprit`'s place: deadlines stand still
    kPeerBack,         // it has come
  };
  Kind kind = Kind::kAbort;
  std::optional<Rank> culprit;
  absl::Status reason;  // never OK; names the rank and how it was noticed
};

// One rank's end of the control plane. After Join the rank is watched: if its process dies, or its
// connection breaks, every other rank is ordered to abort; destroying a Control that has not left
// counts as such a death.
//
// Errors of every call, beside its own: InvalidArgument names the field and its value;
// Unauthenticated: wrong token; Unavailable: the coordinator is lost; FailedPrecondition: not
// joined, or of an older generation (GEN-1); DeadlineExceeded: `deadline` passed.
// Threads: any; Join once, before all others. Owns: its connection and the threads that serve it.
class Control : public Bootstrap {
 public:
  // Called one at a time and in the order of their issue. Must not block; may call no method of the
  // Control that gave the order.
  using OrderCallback = std::function<void(const Order&)>;

  // Enters the job. Blocks: until the whole world has joined, it is known that it cannot, or
  // `deadline`. Errors, the same on every rank that waits: DeadlineExceeded: names the missing
  // ranks; AlreadyExists: two processes with one rank number; FailedPrecondition: world sizes or
  // protocol versions differ, names which; Unavailable: a waiting rank's process died.
  virtual absl::StatusOr<Membership> Join(const JoinRequest& request, absl::Time deadline) = 0;

  // Any question; the four methods below say what each kind does, and are its typed form.
  virtual absl::StatusOr<ControlAnswer> Ask(ControlQuestion question, absl::Time deadline) = 0;

  // One operation on the job's key-value store; the functions of key_value.h give it a typed form.
  // Blocks: until `deadline` for kGet and kWait, else one round trip.
  absl::StatusOr<KeyValueResult> KeyValue(KeyValueRequest request, absl::Time deadline) {
    return AskFor<KeyValueResult>(std::move(request), deadline);
  }

  // The values of `request.members`, in their order; collective among them, with the same name and
  // list. Names of different lists are independent, and a name may be used again once all members
  // have had its answer. Blocks: until all have called, or `deadline`. Errors, the same on all
  // waiting ranks: DeadlineExceeded: names the missing ranks; Unavailable: a rank died; Aborted: a
  // rank left or reported a failure.
  absl::StatusOr<std::vector<std::string>> AllGatherAmong(AllGatherRequest request,
                                                          absl::Time deadline);
  // Bootstrap's collective: the same among all ranks.
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& name,
                                                     const std::string& value,
                                                     absl::Time deadline) final {
    return AllGatherAmong({name, value}, deadline);
  }

  // Who exchanges with whom in a step of a group, the same for all members that ask; to be asked
  // for one step after the other, by each member as soon as it can. Blocks: one round trip. Errors:
  // also OutOfRange: the step is long over.
  absl::StatusOr<Matching> SelectPeers(SelectPeersRequest request, absl::Time deadline) {
    return AskFor<Matching>(std::move(request), deadline);
  }

  // A rank of the group that asks at about the same time; the pair is decided, and neither end may
  // do without the other from then on. To be asked once a round; a call that is repeated, with the
  // same round, because its answer was lost gets the same answer. Blocks: until there is a peer, or
  // it is found that none comes: at most kMostPeerPatience. Errors: also OutOfRange: an earlier
  // round than the last; Aborted: this rank asks in another call as well, or a rank reported a
  // failure; Unavailable: a rank died.
  absl::StatusOr<PeerMatch> FindPeer(FindPeerRequest request, absl::Time deadline) {
    return AskFor<PeerMatch>(std::move(request), deadline);
  }

  // The round this rank is in; sent with the next heartbeat, quoted when the rank dies. Blocks:
  // never.
  virtual void SetRound(Round round) = 0;

  // Tells all other ranks to abort, because this one has failed with `reason`.
  virtual absl::Status Report(const absl::Status& reason, absl::Time deadline) = 0;

  // Goes in good order; nothing of this rank remains at the coordinator and no order comes after.
  // Leaving twice is OK.
  virtual absl::Status Leave(absl::Time deadline) = 0;

  // Sets who receives orders; those that came earlier are delivered at once. Blocks: while an order
  // is being delivered, so that the callback given before is not running any more on return.
  virtual void OnOrder(OrderCallback callback) = 0;

 private:
  // Errors: also Internal: the answer is one to another kind of question.
  template <typename Result>
  absl::StatusOr<Result> AskFor(ControlQuestion question, absl::Time deadline) {
    absl::StatusOr<ControlAnswer> answer = Ask(std::move(question), deadline);
    if (!answer.ok()) return answer.status();
    Result* const result = std::get_if<Result>(&*answer);
    if (result != nullptr) return std::move(*result);
    return absl::InternalError("the coordinator has answered another question");
  }
};

// Returns when all ranks have called it with the same name. Errors: AllGather's.
absl::Status Barrier(Control& control, const std::string& name, absl::Time deadline);

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_CONTROL_H_
