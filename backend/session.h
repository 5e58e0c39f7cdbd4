// The actor of one membership: every failure is told to it, and it ends what can no longer succeed.
#ifndef PELTON_BACKEND_SESSION_H_
#define PELTON_BACKEND_SESSION_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/control/control.h"
#include "comm/group.h"
#include "comm/transport/transport.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/executor.h"
#include "core/actor/executor_base.h"
#include "core/actor/promise.h"
#include "core/actor/sendable.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"

namespace pelton {

// Why a session has failed. It can be asked at any time, also when the session has ended.
// Threads: any. Owns: the reason.
class FailureNote {
 public:
  FailureNote() = default;
  ~FailureNote() { delete reason_.load(); }
  FailureNote(const FailureNote&) = delete;
  FailureNote& operator=(const FailureNote&) = delete;

  // The first reason stays; false: there was one.
  bool Set(const absl::Status& reason);
  // OK while there is none.
  absl::Status Get() const;

 private:
  std::atomic<const absl::Status*> reason_{nullptr};
};

// A communicator between its Opened and its Closed, a region that outlives the session.
// Threads: values. Owns: nothing.
struct OpenCommunicator {
  Communicator* communicator;
  DeviceKind kind;
  Group group;
};
struct SharedRegion {
  const Region* region;
};
template <>
inline constexpr bool kSendableType<OpenCommunicator> = true;
template <>
inline constexpr bool kSendableType<SharedRegion> = true;

// Whether a communicator can be opened with these members.
struct MayOpen {
  Group group;
  Promise<void> reply;
};
// It is aborted when a rank is lost or a member leaves, at once if one is lost already; reaches the
// shared regions, if it is one of the hosts'.
struct Opened {
  OpenCommunicator opened;
  Promise<void> reply;
};
// It is not touched any more once this is answered.
struct Closed {
  OpenCommunicator closed;
  Promise<void> reply;
};
// The communicators of the hosts reach it once this is answered.
struct ShareRegion {
  SharedRegion shared;
  Promise<void> reply;
};
// A rank left in good order some time ago.
struct GraceOver {
  Rank rank;
  absl::Status reason;
};
// Whether an actor of this process has been in one turn for too long is looked for now and then.
struct LookAtTurns {};
// Something on this rank has failed: the others are to be told.
struct FailureHere {
  absl::Status reason;
};

// The root of the actors of one membership. Orders of the control plane are its messages. Where a
// child fails and is not restarted, the session ends what waits with the child's reason and tells
// the other ranks.
// Threads: as every actor; its turns wait for nothing. Owns: nothing of what it ends.
class Session final : public Actor {
 public:
  // A rank that leaves has finished its part of what is under way, but the others may still be
  // reading the results: they get this long before operations that can no longer succeed are ended.
  static constexpr absl::Duration kGrace = absl::Seconds(1);
  // A turn that has lasted so long blocks, or will not end: the longest that are meant to wait ask
  // the coordinator (PeerSelector), for kMostPeerPatience and a second, and tell it of a failure,
  // for tell_patience and a second, where that is more.
  static constexpr absl::Duration kLongTurn = absl::Seconds(10);
  // How often that is looked for, which costs some microseconds.
  static constexpr absl::Duration kTurnLookInterval = absl::Seconds(5);

  // All of it is borrowed and outlives the session.
  struct Options {
    std::string here;  // put before every reason
    Control* control = nullptr;
    Transport* transport = nullptr;
    FailureNote* note = nullptr;
    // Where the others are told, which waits for a round trip; null: a thread of its own.
    Executor* telling = nullptr;
    // How long the coordinator may be silent before it counts as lost: until then it may come to
    // itself again, and tells the others.
    absl::Duration tell_patience = limits::kHeartbeatTimeout;
    // How often it looks for actors that are in one turn for kLongTurn, which it logs; zero: never.
    absl::Duration turn_look_interval;
  };

  explicit Session(Options options)
      : options_(std::move(options)),
        turns_(std::max(kLongTurn, options_.tell_patience + absl::Seconds(1))) {}

  void Handle(Order order);
  void Handle(GraceOver over);
  void Handle(FailureHere failure);
  void Handle(MayOpen question);
  void Handle(Opened opened);
  void Handle(Closed closed);
  void Handle(ShareRegion share);
  void Handle(LookAtTurns look);
  absl::Status OnStart() override;
  absl::Status OnChildFailed(const Down& child) override;
  void OnStop(const absl::Status& why) override;

 private:
  // Why nothing can be opened with these members; OK if it can.
  absl::Status WhyNotWith(const Group& group) const;
  // Ends everything that waits; the first reason stays.
  void End(const absl::Status& reason);

  const Options options_;
  TurnWatch turns_;
  std::map<Rank, absl::Status> left_;  // ranks that have gone, and why
  absl::flat_hash_map<Communicator*, OpenCommunicator> open_;
  std::vector<const Region*> shared_;
  std::unique_ptr<Executor> telling_;  // made when there is something to tell
};

// The way in for what must reach the session however full its mailbox is, because what is lost
// would leave waits that nothing ends. It has room for all that can count: each rank leaves once,
// and of the reasons that end a membership, and of the failures here, the first one stays. Threads:
// Send and Close by one at a time, Report by any. Owns: the room, which a session that stops waits
// for until it is used or Close gives it back.
class SessionDoor {
 public:
  // What the session's mailbox must hold, so that the room is there beside that of all others.
  static size_t MailboxCapacity(WorldSize world_size);

  // `session` was spawned with that capacity, and nobody else has sent to it.
  SessionDoor(ActorRef<Session> session, WorldSize world_size);

  // An order of the control plane. Blocks: never.
  void Send(const Order& order);
  // A failure here. Blocks: never.
  void Report(const absl::Status& reason);
  // What comes after it finds room if there is any, as everybody's messages do.
  void Close();

 private:
  bool TakeRoom(const Order& order);

  const ActorRef<Session> session_;
  std::optional<Permits<Session>> orders_;
  std::vector<bool> has_left_;  // by rank
  bool has_ended_ = false;
  // Whoever sets it has the permit for itself.
  std::atomic<bool> is_reported_{false};
  std::optional<Permits<Session>> report_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_SESSION_H_
