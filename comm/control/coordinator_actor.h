// The coordinator as an actor: what stands between its state machine and those who call.
#ifndef PELTON_COMM_CONTROL_COORDINATOR_ACTOR_H_
#define PELTON_COMM_CONTROL_COORDINATOR_ACTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/coordinator_messages.h"
#include "comm/control/coordinator_state.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/executor.h"
#include "core/actor/promise.h"
#include "core/actor/sendable.h"
#include "proto/control.pb.h"

namespace pelton {

class CoordinatorActor;

// Room in the coordinator's mailbox for one message, taken before the work that the message reports
// begins: what has happened to a call or a stream is never lost for lack of room. Where there is
// none, the call or stream is refused or ended instead.
using CoordinatorRoom = Permits<CoordinatorActor>;

// That the mailbox's bound is never what refuses a rank: an open call holds room for two messages,
// a stream for three, and this is that of 65,536 ranks with some 40 calls each. It takes no memory
// of its own: a message is of some 100 bytes, and what it speaks of is gRPC's, which counts it.
inline constexpr size_t kCoordinatorMailbox = size_t{1} << 24;

// A call whose request has come, and that must be answered: a server ends only when every call has.
// Threads: the coordinator's turns, but for is_cancelled, which any thread may ask. Owns: the
// request; itself, until it has been answered.
class ServedCall {
 public:
  virtual ~ServedCall() = default;
  // Feeds the request to the state machine, as `call`.
  virtual void Feed(CoordinatorState& state, const Call& call, Outbox* outbox) = 0;
  // Once, and last: nobody touches it afterwards, because it may be gone before this returns.
  virtual void Answer(Reply reply) = 0;
  // That nobody waits for the answer. True before the message that says so is sent.
  virtual bool is_cancelled() const = 0;
};

// The coordinator's end of one rank's heartbeat stream. Each operation is one at a time, and may
// report before it returns, because a report is only a message.
// Threads: the coordinator's turns. Owns: itself, until it has been ended.
class ServedStream {
 public:
  virtual ~ServedStream() = default;
  // Reports HeartbeatCame with `room`, or StreamBroke.
  virtual void Read(CoordinatorRoom room) = 0;
  // Reports OrderWritten with `room`.
  virtual void Write(proto::Order order, CoordinatorRoom room) = 0;
  // Once, and last, as ServedCall::Answer; not while an order is being written.
  virtual void End(const absl::Status& status) = 0;
};

// The duty to end a call or a stream. Whoever drops it does so with kUnavailable: the message that
// carries it is dropped where the coordinator has ended, and its tables are when it ends by force.
struct EndUnserved {
  void operator()(ServedCall* call) const;
  void operator()(ServedStream* stream) const;
};
using OwedCall = std::unique_ptr<ServedCall, EndUnserved>;
using OwedStream = std::unique_ptr<ServedStream, EndUnserved>;
// Each owns what it points to, as far as one may end it or begin something on it: gRPC's reactions
// touch only what is theirs.
template <>
inline constexpr bool kSendableType<OwedCall> = true;
template <>
inline constexpr bool kSendableType<OwedStream> = true;

// Calls and streams have numbers that are never given twice. What is said of one names it by its
// number, because it may be gone, and its memory another one's, when the message is handled.
struct BeginCall {
  uint64_t call = 0;
  OwedCall owed;
  std::string job;  // where a Cancel looks for it
  int64_t timeout_us = 0;
};
// May come before the BeginCall: nothing orders what two threads of gRPC send.
struct CancelCall {
  uint64_t call = 0;
};
struct BeginStream {
  uint64_t stream = 0;
  OwedStream owed;
};
struct HeartbeatCame {
  uint64_t stream = 0;
  Caller caller;
  Beat beat;
  uint64_t number = 0;  // of the heartbeat, for its echo
};
struct OrderWritten {
  uint64_t stream = 0;
  bool ok = false;  // if not, nothing more can be written
};
// Once, of one that can be read no more.
struct StreamBroke {
  uint64_t stream = 0;
  absl::Status why = absl::CancelledError("");
};
// Answered when no rank is in any job. Errors: DeadlineExceeded: names who is still there.
struct AwaitEmpty {
  absl::Time deadline;
  Promise<void> reply;
};
// Ends every call and stream, and refuses those to come. The actor itself goes on, so that what
// still is under way can report.
struct EndService {};

// Feeds what it is told to the state machine and carries out the effects, in one turn: no lock is
// held, so gRPC may call back from inside of any operation.
// Threads: its executor's. Owns: the state; the duty to end the calls and streams in its tables.
class CoordinatorActor final : public Actor {
 public:
  explicit CoordinatorActor(absl::Duration heartbeat_timeout) : state_(heartbeat_timeout) {}

  void Handle(BeginCall begun);
  void Handle(CancelCall cancelled);
  void Handle(BeginStream begun);
  void Handle(HeartbeatCame came);
  void Handle(OrderWritten written);
  void Handle(StreamBroke broke);
  void Handle(AwaitEmpty question);
  void Handle(EndService);

  // To itself: what is due is looked at after what has arrived before.
  struct TimerRang {};
  void Handle(TimerRang);
  struct Tick {};
  void Handle(Tick);

 private:
  struct ParkedCall {
    OwedCall owed;
    std::string job;
  };
  // Threads: turns. Owns: the orders that have not been sent.
  struct Stream {
    OwedStream owed;
    std::optional<Caller> caller = {};  // once its first heartbeat has been admitted
    std::deque<proto::Order> outgoing = {};
    int echoes = 0;  // of these
    bool reading = false;
    bool writing = false;
    bool mute = false;                     // nothing can be written any more
    std::optional<absl::Status> end = {};  // once all that is queued has been sent
  };

  absl::Status Admit(Stream& stream, const HeartbeatCame& came, Outbox* outbox);
  // Ends a stream, whose rank is lost unless it has left.
  void Lose(uint64_t id, absl::Status why);
  // Goes on with what can be done now: the next order, the next heartbeat, the end.
  void Advance(uint64_t id);
  void WriteNext(uint64_t id, Stream& stream);
  void ReadNext(uint64_t id, Stream& stream);
  absl::StatusOr<CoordinatorRoom> ReserveFor(uint64_t id);
  void Dispatch(Outbox outbox);
  void EndStream(const EndedStream& ended);
  void Settle();

  CoordinatorState state_;
  absl::flat_hash_map<uint64_t, ParkedCall> calls_;
  absl::flat_hash_map<uint64_t, Stream> streams_;
  // Of ranks that may get orders; none of a stream that has its end.
  std::map<Caller, uint64_t> stream_of_;
  std::vector<AwaitEmpty> awaiting_empty_;
  Timer timer_;
  absl::Time rings_at_ = absl::InfiniteFuture();
  bool stopping_ = false;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_COORDINATOR_ACTOR_H_
