// The open connections to the other ranks: what they have registered, and whether they live.
#ifndef PELTON_COMM_TRANSPORT_SHM_LINKS_H_
#define PELTON_COMM_TRANSPORT_SHM_LINKS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/transport/shm/handshake.h"
#include "comm/transport/shm/mapping.h"
#include "comm/transport/shm/socket.h"
#include "core/base/ids.h"
#include "core/base/sync.h"
#include "core/base/threads.h"
#include "core/memory/region.h"

namespace pelton::shm {

// Keeps a thread that sleeps until a peer says something or is gone: a death is noticed at once and
// costs the data path nothing. Ranks are those of the world. Threads: any. Owns: the connections,
// the peers' registered memory and the thread.
class Links {
 public:
  // Called once per lost peer, on the watching thread, with no lock held. ResourceExhausted: this
  // process could not take in what the peer shares, and the peer is not to blame.
  using LossObserver = std::function<void(int peer, const absl::Status& reason)>;

  Links(int rank, std::vector<Peer> peers, LossObserver on_loss);
  ~Links();  // says goodbye
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  pid_t pid(int peer) const { return peers_[peer].pid; }
  // The number by which texts speak of `peer`.
  int name(int peer) const { return peers_[peer].name; }
  // Whether `peer` may read this process's private memory.
  bool reads_us(int peer) const { return peers_[peer].reads_us; }
  int world_size() const { return static_cast<int>(peers_.size()); }

  // Tells every peer of `region`; counted, so that several communicators may register it.
  absl::Status Register(const Region& region);
  void Deregister(RegionId region);
  // Tells one peer alone, once, of a region with shareable memory; nobody else maps it.
  void Lend(const Region& region, int peer);
  void EndLoan(RegionId region, int peer);
  // What `peer` registered under this number; null while that has not come in. Blocks: never.
  Mapping::Pointer FindRegion(int peer, RegionId region);

  // Sends a communicator's control block to a member.
  absl::Status SendArena(int peer, CommunicatorId id, Generation generation, int descriptor);
  // The oldest one that came from the first of `members`. Blocks: until `deadline`. Errors:
  // DeadlineExceeded; what any member has told by TellOpenFailed; the reason why one is gone. What
  // comes after an error is closed again.
  absl::StatusOr<Descriptor> TakeArena(absl::Span<const Rank> members, CommunicatorId id,
                                       Generation generation, absl::Time deadline);
  // Tells `peer` that this rank has given up opening a communicator, and why. Blocks: never.
  void TellOpenFailed(int peer, CommunicatorId id, Generation generation, const absl::Status& why);
  // What `peer` has told in that way; OK: nothing.
  absl::Status OpenFailureOf(int peer, CommunicatorId id, Generation generation) const;
  // Tells the peers, once, that this rank leaves in good order. Blocks: for half a second at most,
  // while a peer does not take what it has been sent before.
  void SayGoodbye();
  // Why `peer` is gone; OK while it is there.
  absl::Status LossOf(int peer) const;
  // Whether it is gone because it has left in good order.
  bool HasLeft(int peer) const;

 private:
  using OpeningId = std::pair<CommunicatorId, Generation>;
  struct Outgoing {
    Frame frame;
    std::string payload;
    Descriptor attached;
  };
  struct Link {
    std::map<uint32_t, Mapping::Pointer> regions;
    std::deque<Message> arenas;
    std::deque<Message> open_failures;
    std::deque<Outgoing> outbox;  // what the socket did not take at once
    bool said_goodbye = false;
    absl::Status drained;  // what ended the reading, found out by another thread than the watcher
    absl::Status unsent;   // why something could not be kept until the peer takes it
    absl::Status loss;
  };

  // What the watcher waits for, and until when.
  absl::Time Enter(std::vector<pollfd>& entries);
  void LookAt(const std::vector<pollfd>& entries);
  absl::StatusOr<Descriptor> AwaitArena(absl::Span<const Rank> members, const OpeningId& opening,
                                        absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FindOpenFailure(int peer, const OpeningId& opening) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(int peer, const Frame& frame, int attached, absl::string_view payload = "")
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Flush(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes in what `peer` has sent; the reason if it is gone.
  absl::Status Drain(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeIn(int peer, Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<absl::Status> Examine(int peer);

  const int rank_;
  const std::vector<Peer> peers_;
  const pid_t owner_;  // a forked child must not speak in our name
  const LossObserver on_loss_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);
  std::set<OpeningId> given_up_ ABSL_GUARDED_BY(mutex_);        // by this rank
  std::map<uint32_t, int> registered_ ABSL_GUARDED_BY(mutex_);  // uses, by region
  bool has_said_goodbye_ ABSL_GUARDED_BY(mutex_) = false;
  // The watcher's.
  std::vector<int> watched_;  // the peers whose sockets it waits for
  bool has_news_ = false;     // of one that another thread has found out about

  PollThread watcher_{"pelton-links"};  // last: its callbacks use the others
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_LINKS_H_
