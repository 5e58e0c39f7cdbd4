// One-sided memory: a tensor of each rank, and for each of its sources an inlet that only that
// source writes.
#ifndef PELTON_COMM_WINDOW_WINDOW_H_
#define PELTON_COMM_WINDOW_WINDOW_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/collectives.h"
#include "comm/window/edge_runs.h"
#include "comm/window/peer_link.h"
#include "comm/window/peer_processes.h"
#include "comm/window/window_memory.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// A window's end at a neighbour that shares no memory with this rank.
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
  // The other rank's tensor, times `what.weight`, into an inlet of this rank. Blocks: until it is
  // there, or `deadline`. Errors: PeerLink::AwaitTransfer's; those of EdgeView::Provide.
  absl::Status Fill(const EdgeView& inlet, const EdgeFill::What& what,
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

// What one rank brings to a window. Threads: a value. Owns: its lists.
struct WindowOptions {
  std::string name;
  Tensor tensor;                        // the window's own; borrowed until the window ends
  std::vector<int64_t> shape = {};      // of the tensor, for comparison
  std::vector<Rank> sources = {};       // that have an inlet here, ascending
  std::vector<Rank> destinations = {};  // that have an inlet for this rank, ascending
  bool zero_init = false;               // inlets begin with 0, else with this rank's tensor
  // Why the tensor's owner cannot move it to home(), where ranks that may not read this process's
  // memory would read it; OK: it can.
  absl::Status immovable = absl::OkStatus();
  // The counter of the bytes that are put and accumulated, a tensor for each destination; may be
  // null. Shared, because a window may outlive the code that reads the counter. Units: bytes.
  std::shared_ptr<std::atomic<uint64_t>> sent_bytes = nullptr;
};

// How an operation goes about its edges. Threads: a value. Owns: nothing.
struct WindowAccess {
  bool with_p = false;      // p takes part
  bool with_mutex = false;  // each edge's mutex is held meanwhile
  // Of the waits for mutexes, and for far ranks; nothing else waits.
  MovingDeadline deadline = absl::InfiniteFuture();
};

// One rank's end of a window; made by CreateWindow (create_window.h). All weights are checked
// before anything is done. An edge that fails, because its peer has ended or its mutex was not to
// be had in time, is named, and the other edges are served.
//
// To and from a rank on another host (PeerProcesses calls it far) the calls mean the same; they
// wait for its link, which a thread of that rank drives, and never for its trainer. Where it does
// not answer by the deadline the edges between the two fail from then on.
//
// MASS-1: what is added to an inlet is collected from it exactly once, tensors and p alike, in any
// interleaving and with or without mutexes.
//
// Threads: two, the writer of Put and Accumulate and the owner of Get and Update, each one at a
// time; a lock is given back by the thread that took it; getters by any. Owns: its memory, and its
// hold on that of its neighbours.
class Window {
 public:
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  const WindowOptions& options() const { return options_; }
  Rank rank() const { return rank_; }

  // The inlet of this rank at each destination becomes weight * source, and afterwards source
  // becomes own_weight * source, in place. With p: that of the inlet becomes weight * p, and p
  // becomes own_weight * p. Shape: as the window's tensor, which `source` may be. Blocks: for
  // mutexes and far ranks only. Errors: InvalidArgument: a rank is no destination, or a weight or
  // shape is wrong; Unavailable: names the ranks that have ended; DeadlineExceeded: names the
  // holder of a mutex; ResourceExhausted.
  absl::Status Put(const Tensor& source, absl::Span<const Neighbor> destinations, double own_weight,
                   const WindowAccess& access) {
    return Write(source, destinations, own_weight, access, /*adds=*/false);
  }
  // The same, but weight * source, and weight * p, are added to what the inlet has. No version.
  absl::Status Accumulate(const Tensor& source, absl::Span<const Neighbor> destinations,
                          double own_weight, const WindowAccess& access) {
    return Write(source, destinations, own_weight, access, /*adds=*/true);
  }

  // This rank's inlet of each source becomes weight * the source's tensor as it is there; p stays.
  // It is whole only under the mutex that the source's own updates take too. Blocks and Errors: as
  // Put; also PermissionDenied: the kernel forbids reading the source's memory.
  absl::Status Get(absl::Span<const Neighbor> sources, const WindowAccess& access);

  // Threads: a value. Owns: nothing.
  struct Update {
    double own_weight = 1;
    absl::Span<const Neighbor> sources = {};  // ascending
    bool resets = false;                      // the inlets used become 0 afterwards
    std::byte* target = nullptr;              // null: the window's tensor, in place
  };
  // target = own_weight * tensor + the sum of weight * inlet, or the mean where all weights are 1 /
  // their number. With p: p = own_weight * p + the sum of weight * p of the inlet. All versions
  // become 0. Blocks and Errors: as Put.
  absl::Status UpdateFromInlets(const Update& update, const WindowAccess& access);

  // Values put into the inlet of each source, and got, since the last update; by source.
  std::vector<std::pair<Rank, uint32_t>> versions() const;
  double p() const { return p_.load(std::memory_order_relaxed); }
  // Whether all that this rank has accumulated at `destination` has been collected there; true of a
  // far one, of which that is not known. Requires: it is a destination. Threads: the writer.
  bool IsCollected(Rank destination) const;

  // The mutex of the edge from this rank to `peer`, or with `of_own` of that from `peer` to this
  // rank. Several are taken in ascending order of owner, then of source, so that nobody waits in a
  // circle. Errors: InvalidArgument: no neighbour; those of EdgeMutex.
  absl::Status Lock(Rank peer, bool of_own, const MovingDeadline& deadline);
  absl::Status Unlock(Rank peer, bool of_own);
  // Whether this rank has it now. Blocks: never. Errors: InvalidArgument: no neighbour.
  absl::StatusOr<bool> TryLock(Rank peer, bool of_own);

  // Where the tensor is from now on, because its readers may not read it where it was; null: where
  // it was. Its bytes are there. Shared: the user's tensor keeps the memory for as long as it
  // needs.
  std::shared_ptr<const void> home_owner() const { return memory_.owner(); }
  std::byte* home() const { return home_; }

  // An inlet of this rank, for tests.
  EdgeView edge_from(size_t source_index) const { return memory_.edge(source_index); }
  // The inlet of this rank at a near destination, for tests.
  EdgeView edge_to(Rank destination) const;
  // The end of a far neighbour, else null; for tests.
  RemoteEnd* remote_end(Rank peer) const { return RemoteOf(peer); }

 private:
  friend class WindowMaker;  // create_window.cc
  // The end of a neighbour on this host. Threads: as the window. Owns: its hold on the memory.
  struct NeighborEnd {
    WindowMemory memory;
    int64_t inlet_of_ours = -1;  // its number there; -1: it has no inlet for this rank
    pid_t pid = 0;               // in whose process the tensor is read
    uint64_t tensor_address = 0;
  };

  Window(Rank rank, WindowOptions options, WindowMemory memory,
         std::shared_ptr<const PeerProcesses> processes);

  absl::Status Write(const Tensor& source, absl::Span<const Neighbor> destinations,
                     double own_weight, const WindowAccess& access, bool adds);
  absl::Status WriteToAll(absl::Span<const Neighbor> destinations, EdgeWrite::What what,
                          const WindowAccess& access);
  absl::Status CheckSource(const Tensor& source) const;
  absl::Status CheckWeights(absl::Span<const Neighbor> neighbors, const std::vector<Rank>& among,
                            absl::string_view what) const;
  absl::Status WriteTo(const Neighbor& destination, const EdgeWrite::What& what,
                       const WindowAccess& access);
  absl::Status WriteFar(RemoteEnd& end, const EdgeWrite::What& what, const WindowAccess& access);
  absl::Status FillFrom(Rank source, const EdgeView& inlet, EdgeFill::What what) const;
  // Null: it is near.
  RemoteEnd* RemoteOf(Rank peer) const;
  absl::Status GetFrom(const Neighbor& source, const WindowAccess& access);
  OwnerUpdate::What PlanOf(const Update& update, bool with_p) const;
  absl::StatusOr<EdgeMutex*> MutexOf(Rank peer, bool of_own) const;
  absl::Status LockInlets(absl::Span<const Neighbor> sources, const MovingDeadline& deadline);
  size_t InletOf(Rank source) const;

  const Rank rank_;
  WindowOptions options_;
  WindowMemory memory_;
  std::byte* home_ = nullptr;
  // Shared: all windows of a group use it.
  std::shared_ptr<const PeerProcesses> processes_;
  std::map<Rank, NeighborEnd> near_ends_;
  std::shared_ptr<PeerLinks> links_;                        // shared: all windows of a group use it
  std::map<Rank, std::unique_ptr<RemoteEnd>> remote_ends_;  // of far ranks
  std::atomic<double> p_{1};
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_WINDOW_H_
