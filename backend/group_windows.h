// The windows among the ranks of one group, for pipelines' stages and for one-sided operations.
#ifndef PELTON_BACKEND_GROUP_WINDOWS_H_
#define PELTON_BACKEND_GROUP_WINDOWS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/transport/transport.h"
#include "comm/window/peer_link.h"
#include "comm/window/peer_processes.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// The wire between hosts that a job has chosen.

// Makes the transport that is registered as `name`; collective over the job. Where
// `options.interface` is "", it is the one towards the coordinator. Blocks: until all have called,
// or the deadline. Errors: NotFound: there is no such transport; those of the transport.
absl::StatusOr<std::unique_ptr<Transport>> ConnectWire(const std::string& name,
                                                       const std::string& coordinator_address,
                                                       TransportOptions options);

// Wires between two ranks each, which the loss of a third rank does not end.
// A transport of its own beside those of a backend, whose session ends all of those when a rank is
// lost. Here the end of a rank ends what it has a part in, as soon as the wire tells.
// Threads: one at a time. Owns: the transport; the backend outlives it.
class PairWires {
 public:
  // Collective over the group, in the same order on all its ranks. Blocks: until all have called,
  // or `deadline`. Errors: those of CheckGroup and of ConnectWire; Unimplemented: the backend's
  // wires are a daemon's (backend/link).
  static absl::StatusOr<std::unique_ptr<PairWires>> Connect(Backend& backend, const Group& group,
                                                            absl::Time deadline);

  // Opens a communicator of this rank and `peer`, by its place in the group, which both call, with
  // the same `attempt` and another one at each call for the same pair. It must be destroyed before
  // this object. Blocks: until both have called, or `deadline`. Errors: those of CheckGroup and of
  // Transport::Open; why the job has failed.
  absl::StatusOr<std::unique_ptr<Communicator>> Open(Rank peer, uint32_t attempt,
                                                     absl::Time deadline);

 private:
  PairWires(Backend& backend, Rank rank, WorldSize group_size, std::unique_ptr<Transport> transport)
      : backend_(backend), rank_(rank), group_size_(group_size), transport_(std::move(transport)) {}

  Backend& backend_;
  const Rank rank_;  // its place in the group
  const WorldSize group_size_;
  const std::unique_ptr<Transport> transport_;
};

// Threads: one at a time. Owns: a communicator by which windows are made, the links to the ranks on
// other hosts, and what all know of each other's processes; the backend outlives it.
class GroupWindows final : public WindowSource {
 public:
  // Collective over the group. `timeout`: of each call that the ranks do together. Blocks: until
  // all have called, or the timeout. Errors: those of Backend::Open, of PeerProcesses::Meet and,
  // where ranks are on several hosts, of PairWires::Connect.
  static absl::StatusOr<std::unique_ptr<GroupWindows>> Open(Backend& backend, const Group& group,
                                                            absl::Duration timeout);
  ~GroupWindows() override { Close(); }
  GroupWindows(const GroupWindows&) = delete;
  GroupWindows& operator=(const GroupWindows&) = delete;

  // Errors: also those of communicator().
  absl::StatusOr<std::unique_ptr<Window>> Make(WindowOptions options) override;
  MovingDeadline deadline() const override;
  // Put and accumulated by this rank in all its windows so far. Threads: any.
  uint64_t sent_bytes() const { return sent_bytes_->load(std::memory_order_relaxed); }

  // For what the ranks do together around their windows. Errors: FailedPrecondition: closed, or a
  // forked child's.
  absl::StatusOr<Communicator*> communicator() const;
  // Gives the communicator and the links back; a window stays usable inside a host. Idempotent.
  void Close();

 private:
  GroupWindows(const Standstill& standstill, absl::Duration timeout)
      : standstill_(standstill), timeout_(timeout) {}

  const Standstill& standstill_;  // the backend's
  const absl::Duration timeout_;
  // Shared: a window may outlive this.
  const std::shared_ptr<std::atomic<uint64_t>> sent_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  std::unique_ptr<Communicator> communicator_;      // null when closed
  std::shared_ptr<const PeerProcesses> processes_;  // shared: a window may outlive this
  // Null, both: all ranks are on one host.
  std::unique_ptr<PairWires> wires_;
  std::shared_ptr<PeerLinks> links_;  // shared: a window may outlive this
};

}  // namespace pelton

#endif  // PELTON_BACKEND_GROUP_WINDOWS_H_
