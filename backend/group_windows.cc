#include "backend/group_windows.h"

#include <utility>

#include "absl/status/status.h"
#include "comm/window/create_window.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<GroupWindows>> GroupWindows::Open(Backend& backend,
                                                                 const Group& group,
                                                                 absl::Duration timeout) {
  RETURN_IF_ERROR(CheckNotForkedChild());
  std::unique_ptr<GroupWindows> windows(new GroupWindows(backend.absences().standstill(), timeout));
  ASSIGN_OR_RETURN(windows->communicator_, backend.Open(group));
  const MovingDeadline deadline = windows->deadline();
  ASSIGN_OR_RETURN(windows->processes_, PeerProcesses::Meet(*windows->communicator_, deadline,
                                                            backend.options().host_label));
  if (!windows->processes_->has_far_ranks()) return windows;
  ASSIGN_OR_RETURN(windows->wires_,
                   PairWires::Connect(backend, group, deadline.At(Clock::Real().Now())));
  // Close ends what uses the wires.
  windows->links_ = std::make_shared<PeerLinks>(
      [wires = windows->wires_.get()](Rank peer, uint32_t attempt, absl::Time by) {
        return wires->Open(peer, attempt, by);
      },
      /*executor=*/nullptr, backend.session());
  return windows;
}

MovingDeadline GroupWindows::deadline() const {
  const absl::Time now = Clock::Real().Now();
  return {now + timeout_, &standstill_, now};
}

absl::StatusOr<Communicator*> GroupWindows::communicator() const {
  RETURN_IF_ERROR(CheckNotForkedChild());
  if (communicator_ != nullptr) return communicator_.get();
  return absl::FailedPreconditionError("the job of these windows has ended");
}

absl::StatusOr<std::unique_ptr<Window>> GroupWindows::Make(WindowOptions options) {
  ASSIGN_OR_RETURN(Communicator* const all, communicator());
  options.sent_bytes = sent_bytes_;
  return CreateWindow(*all, processes_, std::move(options), deadline(), links_);
}

// The links run on communicators of the wires.
void GroupWindows::Close() {
  if (IsForkedChild()) return;
  if (links_ != nullptr) links_->Close();
  wires_.reset();
  communicator_.reset();
}

}  // namespace pelton
