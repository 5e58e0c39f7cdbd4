// Ending a communicator on all of its ranks.
#ifndef PELTON_COMM_TRANSPORT_SHM_ABORT_H_
#define PELTON_COMM_TRANSPORT_SHM_ABORT_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/transport/shm/context.h"
#include "core/base/sharing.h"

namespace pelton::shm {

// The first reason wins, on all ranks: it stands in the control block, and every step looks there.
// Threads: any. Owns: this rank's own reason.
class AbortSwitch {
 public:
  explicit AbortSwitch(const Context& context) : context_(context) {}

  // Shows `reason` to all ranks, unless there is one; wakes them. `is_death`: it says which rank
  // is gone, and reads the same on every rank. Blocks: never.
  void Throw(const absl::Status& reason, bool is_death);

  bool is_thrown() const { return context_.IsAborted(); }
  // As this rank reports it: its own reason as it is, a peer's as "rank N aborted: ...". Nothing
  // while the rank that aborts is still writing.
  std::optional<absl::Status> Reason() const;
  // Operations that have all they need may still end well: a rank that has left took part in them.
  bool IsDeath() const;

  // Shows that this rank takes its memory back, so that no peer begins to read or write there, and
  // looks whether peers that are there are still at it: only when they are quiet the owner may have
  // it (OWN-1). A peer that writes for longer than a second was stopped, by SIGSTOP, a debugger, or
  // whatever keeps it from its core, and may go on at any time. One that reads for so long is not
  // waited for, because it drops what it has read when it goes on.
  // Threads: the one that runs the operations.
  enum class Peers { kQuiet, kBusy, kStopped };
  Peers CloseMemory();

 private:
  const Context& context_;
  EndReason own_reason_;
  std::optional<absl::Time> since_;  // of taking memory back
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_ABORT_H_
