#include "backend/group_windows.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "backend/hosts.h"
#include "backend/link/attach.h"
#include "backend/route.h"
#include "comm/window/create_window.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<Transport>> ConnectWire(const std::string& name,
                                                       const std::string& coordinator_address,
                                                       TransportOptions options) {
  ASSIGN_OR_RETURN(const TransportRegistry::Entry wire, TransportRegistry::Get().Find(name));
  if (options.interface.empty()) {
    ASSIGN_OR_RETURN(options.interface, InterfaceTowards(coordinator_address));
  }
  return wire.factory(options);
}

absl::StatusOr<std::unique_ptr<PairWires>> PairWires::Connect(Backend& backend, const Group& group,
                                                              absl::Time deadline) {
  RETURN_IF_ERROR(CheckNotForkedChild());
  RETURN_IF_ERROR(CheckGroup(group, backend.world_size(), backend.rank()));
  if (IsLinkAddress(backend.options().coordinator_address)) {
    return absl::UnimplementedError(
        absl::StrCat("rank ", backend.rank().value(), ": windows between hosts need wires of the ",
                     "rank's own, and this one's are a daemon's; start the ranks without one"));
  }
  // The backend's own wires have taken the keys without a prefix.
  GroupBootstrap bootstrap(backend.control(), group.members, "pairs/");
  const auto place = std::find(group.members.begin(), group.members.end(), backend.rank());
  TransportOptions options;
  options.rank = Rank(static_cast<int32_t>(place - group.members.begin()));
  options.world_size = group.size();
  options.job_token = backend.options().token;
  options.bootstrap = &bootstrap;
  options.deadline = deadline;
  options.interface = backend.options().interface;
  ASSIGN_OR_RETURN(
      std::unique_ptr<Transport> transport,
      ConnectWire(backend.options().wire, backend.options().coordinator_address, options));
  return std::unique_ptr<PairWires>(
      new PairWires(backend, options.rank, options.world_size, std::move(transport)));
}

absl::StatusOr<std::unique_ptr<Communicator>> PairWires::Open(Rank peer, uint32_t attempt,
                                                              absl::Time deadline) {
  RETURN_IF_ERROR(CheckNotForkedChild());
  RETURN_IF_ERROR(backend_.failure());
  const Group pair{{std::min(rank_, peer), std::max(rank_, peer)}, Generation(attempt + 1)};
  RETURN_IF_ERROR(CheckGroup(pair, group_size_, rank_));
  // A number that no other pair has.
  const auto lower = static_cast<uint32_t>(pair.members[0].value());
  const uint32_t id = lower * static_cast<uint32_t>(group_size_.value()) +
                      static_cast<uint32_t>(pair.members[1].value());
  return transport_->Open(CommunicatorId(id), pair, deadline);
}

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
  return absl::FailedPreconditionError(
      "the job of these windows has ended; make the windows again after the next init");
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
