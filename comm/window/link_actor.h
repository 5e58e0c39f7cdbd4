// The actor that serves one rank of another host, and asks it.
#ifndef PELTON_COMM_WINDOW_LINK_ACTOR_H_
#define PELTON_COMM_WINDOW_LINK_ACTOR_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/window/window_memory.h"
#include "core/actor/actor.h"
#include "core/actor/executor.h"
#include "core/actor/promise.h"
#include "core/actor/sendable.h"
#include "core/base/status.h"
#include "core/memory/dtype.h"

namespace pelton {

// What ranks of different hosts say to each other about a window.

// Tags of the messages; the communicator of a link has no other users.
inline constexpr int32_t kLinkMessageTag = 0;
inline constexpr int32_t kLinkRequestValueTag = 1;  // what a put or an accumulate brings
inline constexpr int32_t kLinkReplyValueTag = 2;    // what a get is given

// kLeave is the last request of an end, and has no reply: not every transport tells that the other
// rank has closed its communicator.
enum class LinkCall : uint8_t { kPut, kAccumulate, kGet, kLock, kTryLock, kUnlock, kLeave };

// The value of a put or an accumulate follows under a tag of its own, in the order of the requests.
// It travels as bytes. Threads: a value. Owns: nothing.
struct LinkRequest {
  uint64_t number = 0;  // of the asking end's requests, from 1
  uint64_t window = 0;
  uint64_t value_bytes = 0;  // of the value, whichever way it goes
  double weight = 1;         // by which the receiver multiplies
  double p = 0;
  int64_t wait_ns = 0;  // of a lock: how long it may take
  LinkCall call = LinkCall::kPut;
  uint8_t has_p = 0;

  bool brings_value() const { return call == LinkCall::kPut || call == LinkCall::kAccumulate; }
};

// The value of a get follows under a tag of its own, in the order of the replies, unless the reply
// is an error. It travels as bytes. Threads: a value. Owns: nothing.
struct LinkReply {
  uint64_t number = 0;  // of the request
  int32_t code = 0;
  uint8_t is_granted = 0;  // of a kTryLock
  char text[243] = {};

  static LinkReply To(uint64_t number, const absl::Status& status) {
    LinkReply reply;
    reply.number = number;
    reply.code = static_cast<int32_t>(status.code());
    const absl::string_view text = CutToFit(status.message(), sizeof reply.text - 1);
    std::copy(text.begin(), text.end(), reply.text);
    return reply;
  }
  absl::Status ToStatus() const {
    if (code == 0) return absl::OkStatus();
    return absl::Status(static_cast<absl::StatusCode>(code),
                        absl::string_view(text, strnlen(text, sizeof text)));
  }
};

// All that is announced goes under one tag, because a communicator may be asked for one at a time.
// It travels as bytes. Threads: a value. Owns: nothing.
struct LinkMessage {
  uint64_t is_reply = 0;
  LinkRequest request;
  LinkReply reply;
};

// What a window of this rank offers to the rank at the other end. Threads: a value. Owns: a hold on
// the inlets' memory; the tensor's outlives the serving.
struct ServedWindow {
  std::optional<EdgeView> inlet;      // that the other rank writes; none: it is no source
  EdgeMutex* mutex = nullptr;         // of the edge from the other rank
  const std::byte* tensor = nullptr;  // that it gets
  uint64_t count = 0;
  DType dtype = DType::kFloat32;
  std::shared_ptr<const void> memory = nullptr;  // shared: of the inlets, with the window

  uint64_t value_bytes() const { return count * SizeOf(dtype); }
};

// A request with where its values are. Both belong to the actor until it has answered.
// Threads: a value. Owns: nothing.
struct LinkQuestion {
  LinkRequest request;
  const std::byte* value = nullptr;  // that goes with it
  std::byte* target = nullptr;       // of what comes back
};
template <>
inline constexpr bool kSendableType<ServedWindow> = true;
template <>
inline constexpr bool kSendableType<LinkQuestion> = true;

// Asks the other rank. True unless it was a kTryLock that was not granted.
struct AskPeer {
  LinkQuestion question;
  Promise<bool> reply;
};
// From now on the other rank is served; answered at once.
struct ServeWindow {
  uint64_t window = 0;
  ServedWindow served;
  Promise<void> reply;
};
// Answered when nothing of the window is in use any more.
struct StopServing {
  uint64_t window = 0;
  Promise<void> reply;
};
// Ends everything; answered when no memory of others is in use any more.
struct CloseLink {
  Promise<void> reply;
};
// Has it look around.
struct LookAround {};

// Drives a communicator of two ranks that nobody else uses. A put is received straight into a free
// buffer of its inlet. An accumulate is received beside it, because the owner may take away what it
// was added to, and the sum is then made anew.
//
// A mutex that the other rank asks for is taken by the thread of this actor, which gives it back
// when the other rank asks for that, or is lost. So the actor stays on one thread.
//
// One value comes in at a time; values that go out do so side by side.
// Threads: as every actor. Owns: what is under way; the communicator outlives it.
class LinkActor final : public PollingActor {
 public:
  // `waits_for_mutex`: set while the other rank waits for a mutex of this one; outlives the actor.
  LinkActor(Communicator* communicator, Rank peer, std::atomic<bool>* waits_for_mutex);
  ~LinkActor() override;

  void Handle(AskPeer ask);
  void Handle(ServeWindow serve);
  void Handle(StopServing stop);
  void Handle(CloseLink close);
  void Handle(LookAround) {}
  PollResult Poll() override;
  absl::Duration MaxPark() const override;
  void OnStop(const absl::Status& why) override;

 private:
  // Messages, one after the other. Threads: the actor's. Owns: the one that is coming in.
  class Inbox {
   public:
    explicit Inbox(Communicator& communicator) : communicator_(communicator) {}
    // The next one, once it is here. Errors: those of the communicator.
    absl::StatusOr<std::optional<LinkMessage>> Take();
    bool is_idle() const { return !under_way_.has_value(); }

   private:
    Communicator& communicator_;
    LinkMessage message_;
    std::optional<Completion> under_way_;
  };
  // A request of this rank, until it is answered. Threads: the actor's. Owns: the promise.
  struct Question {
    LinkQuestion asked;
    LinkMessage message;
    std::vector<Completion> transfers;
    bool is_answered = false;
    absl::StatusOr<bool> answer = false;
    Promise<bool> reply;
  };
  // A value that comes in. Threads: the actor's. Owns: nothing.
  struct Arrival {
    LinkRequest request;
    absl::Status refusal;                  // why it is thrown away
    std::optional<Inlet::Draft> draft;     // of a put
    std::optional<Completion> completion;  // none: it has no bytes
  };
  // A reply that goes out, with the tensor of a get. Threads: the actor's. Owns: the reply.
  struct Departure {
    LinkMessage message;
    uint64_t window = 0;
    std::vector<Completion> transfers;
  };
  // Threads: the actor's. Owns: what has the actor look at its deadline, in virtual time too.
  struct WaitingLock {
    LinkRequest request;
    absl::Time until;
    Timer timer;
  };

  // Each: true if anything moved. Errors: end the link.
  absl::StatusOr<bool> Advance();
  absl::StatusOr<bool> TakeMessage();
  absl::Status TakeReply(const LinkReply& reply);
  absl::StatusOr<bool> ServeNext();
  absl::StatusOr<bool> TakeValue();
  absl::StatusOr<bool> GrantLocks();
  bool SettleQuestions();
  bool SettleDepartures();
  bool SettleStops();

  absl::Status Ask(uint64_t number);
  absl::Status Serve(const LinkRequest& request);
  absl::Status ServeGet(const LinkRequest& request);
  absl::Status ServeMutex(const LinkRequest& request);
  void AwaitMutex(const LinkRequest& request);
  absl::Status BeginArrival(const LinkRequest& request);
  absl::Status Publish(const Arrival& arrival);
  // `value`: what a get is given; null: nothing.
  absl::Status Reply(const LinkReply& reply, uint64_t window, const ServedWindow* value = nullptr);
  absl::Status SendBytes(const void* bytes, uint64_t size, int32_t tag,
                         std::vector<Completion>& transfers);
  absl::StatusOr<Completion> ReceiveBytes(void* bytes, uint64_t size, int32_t tag);
  // Drops those that are done; true when there is none left.
  bool AreDone(std::vector<Completion>& transfers);
  bool IsStopping(uint64_t window) const;
  bool IsInUse(uint64_t window) const;
  bool IsOver(const Arrival& arrival);
  void GiveBack(uint64_t window);
  // Ends the link: what is under way fails, mutexes are given back.
  void Break(const absl::Status& why);
  void GiveAllBack();
  bool HasTransfers() const;
  void SayGoodbye();
  bool HasSaidGoodbye();
  bool is_closed() const { return !broken_.ok(); }

  Communicator& communicator_;
  const Rank peer_;   // as users know it
  const Rank other_;  // in the communicator
  std::atomic<bool>& waits_for_mutex_;
  Inbox inbox_;
  std::deque<LinkRequest> requests_;  // that wait for a value to be in
  absl::Status broken_;
  uint64_t asked_count_ = 0;
  std::map<uint64_t, Question> questions_;  // by number
  std::map<uint64_t, ServedWindow> served_;
  std::optional<Arrival> arrival_;
  std::vector<std::byte> staging_;  // what no inlet takes
  std::list<Departure> departures_;
  std::vector<WaitingLock> waiting_;
  std::set<uint64_t> held_;  // windows whose mutex the other rank has
  std::vector<StopServing> stops_;
  LinkMessage goodbye_;
  std::vector<Completion> goodbye_transfers_;
  std::vector<Promise<void>> closers_;
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_LINK_ACTOR_H_
