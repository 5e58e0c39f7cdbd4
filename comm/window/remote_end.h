// A window's end at a neighbour that shares no memory with this rank.
#ifndef PELTON_COMM_WINDOW_REMOTE_END_H_
#define PELTON_COMM_WINDOW_REMOTE_END_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/window/edge_mutex.h"
#include "comm/window/edge_runs.h"
#include "comm/window/peer_link.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// What is done to memory inside a host is asked of the other rank's link here.
// Threads: as Window. Owns: the place of the mutex's holder among this rank's threads.
class RemoteEnd {
 public:
  // Both outlive it. `window` is the number of the window.
  RemoteEnd(PeerLink* link, uint64_t window) : link_(*link), window_(window) {}
  ~RemoteEnd();
  RemoteEnd(const RemoteEnd&) = delete;
  RemoteEnd& operator=(const RemoteEnd&) = delete;

  // Makes this rank's end known to the other one.
  absl::Status Serve(ServedWindow served) { return link_.Serve(window_, std::move(served)); }

  // A put or an accumulate, begun: the value is the link's until Finish. Blocks: never.
  Future<bool> StartWrite(const EdgeWrite::What& what);
  // Blocks: until the value is published there, or `deadline`. Errors: PeerLink::AwaitTransfer's.
  absl::Status Finish(Future<bool> write, const MovingDeadline& deadline) {
    return link_.AwaitTransfer(std::move(write), deadline);
  }
  // The other rank's tensor, times `what.weight`, into a slot of this rank. Blocks: until it is
  // there, or `deadline`. Errors: PeerLink::AwaitTransfer's; those of EdgeView::Provide.
  absl::Status Fill(const EdgeView& slot, const EdgeFill::What& what,
                    const MovingDeadline& deadline);

  // The mutex of the edge from this rank. Errors: as EdgeMutex; those of the link. Unlock is OK,
  // too, where the other rank has gone.
  absl::Status Lock(Rank taker, const MovingDeadline& deadline);
  absl::StatusOr<bool> TryLock(Rank taker);
  absl::Status Unlock();

  // This rank has given back a mutex of its own that the other one may wait for.
  void OnUnlock() { link_.OnUnlock(); }

 private:
  LinkQuestion QuestionOf(LinkCall call) const;
  absl::StatusOr<bool> AskUntil(LinkQuestion question, const MovingDeadline& deadline);
  absl::StatusOr<bool> AskForMutex(const LinkQuestion& question, const MovingDeadline& deadline);

  PeerLink& link_;
  const uint64_t window_;
  // The threads of this rank agree here which one of them has the mutex there.
  EdgeMutex ours_;
  std::atomic<bool> has_ours_ = false;
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_REMOTE_END_H_
