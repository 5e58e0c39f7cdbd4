// The links of a rank to those ranks that share no memory with it.
#ifndef PELTON_COMM_WINDOW_PEER_LINK_H_
#define PELTON_COMM_WINDOW_PEER_LINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/window/link_actor.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/executor.h"
#include "core/actor/promise.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// A communicator of this rank and one other, and the thread that drives it: the other rank is
// served whatever the threads of this rank do. A link that breaks, because the other rank is lost,
// takes no other one with it.
// Threads: any; Close by one, when nobody calls anything else. Owns: the communicator, its actor
// and the actor's thread.
class PeerLink {
 public:
  // `executor` null: a thread of its own. `parent` is told when the actor fails, and may end before
  // it; it may be nobody.
  PeerLink(std::unique_ptr<Communicator> communicator, Rank peer, Executor* executor,
           const ActorRef<Actor>& parent);
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  // From now on the other rank reaches this window. Blocks: for a turn of the actor. Errors: why
  // the link is broken.
  absl::Status Serve(uint64_t window, ServedWindow served);
  // Not any more. Blocks: until nothing of it is in use; a transfer that lasts longer than
  // limits::kStopTimeout breaks the link.
  void StopServing(uint64_t window);

  // Asks the other rank; one of the next two calls has to follow. Blocks: never.
  Future<bool> Ask(const LinkQuestion& question);
  // Waits for what uses memory of the caller's, which is the caller's again afterwards. Blocks:
  // until `deadline`. Errors: those of the other rank; DeadlineExceeded, InterruptedError: the link
  // is broken then, because a transfer cannot be taken back; Unavailable: the other rank is lost.
  absl::Status AwaitTransfer(Future<bool> answer, const MovingDeadline& deadline);
  // Waits for what uses none: a mutex that comes too late is given back. Blocks and Errors: the
  // same, but the link is as it was.
  absl::StatusOr<bool> AwaitMutex(Future<bool> answer, const MovingDeadline& deadline);

  // To be called when a thread of this rank has given back a mutex that the other rank may wait
  // for. Blocks: never.
  void OnUnlock();

  // Later questions are refused. Idempotent. Blocks: limits::kStopTimeout at most.
  void Close();

 private:
  // Lets the actor see at once what was sent to it. Blocks: never.
  void Wake();

  const Rank peer_;
  std::unique_ptr<Communicator> communicator_;  // null when closed
  std::atomic<bool> waits_for_mutex_ = false;
  std::unique_ptr<Executor> own_executor_;
  ActorRef<LinkActor> actor_;
};

// All links of a rank, made as windows need them, and the numbers of its windows.
// Threads: one at a time; at() by any. Owns: the links.
class PeerLinks {
 public:
  // Opens a communicator of this rank and `peer` alone, which both call. `attempt` is the same on
  // both, and another one at every call for the same ranks. Blocks: until both have called, or the
  // deadline.
  using OpenPair = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
      Rank peer, uint32_t attempt, absl::Time deadline)>;

  // `executor` null: a thread for each link. `parent`: see PeerLink.
  explicit PeerLinks(OpenPair open, Executor* executor = nullptr, ActorRef<Actor> parent = {})
      : open_(std::move(open)), executor_(executor), parent_(std::move(parent)) {}

  // The number of the next window. Windows are made in one order, so it is the same on all ranks.
  uint64_t NextWindow() { return ++window_count_; }
  // Connects to those of `peers`, which ascend, that there is no link to; these are appended to
  // `connected`. Every two ranks that connect have to call. Blocks: until `deadline`. Errors: those
  // of OpenPair, with the peer's name.
  absl::Status Connect(const std::vector<Rank>& peers, std::vector<Rank>& connected,
                       absl::Time deadline);
  // Drops links that were made for a window that could not be.
  void Disconnect(const std::vector<Rank>& peers);
  // Null: there is none.
  PeerLink* at(Rank peer) const;
  // Ends all links. Idempotent.
  void Close();

 private:
  const OpenPair open_;
  Executor* const executor_;
  const ActorRef<Actor> parent_;
  uint64_t window_count_ = 0;
  std::map<Rank, std::unique_ptr<PeerLink>> links_;
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_PEER_LINK_H_
