#include "comm/transport/fault/fault_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::Status FaultDice::OnLaunch() {
  const uint64_t launch = ++launches_;
  if (launch == script_.kill_launch) {
    return absl::UnavailableError(
        absl::StrCat("injected fault: the connection broke at launch ", launch));
  }
  if (launch == script_.fail_launch) {
    return absl::ResourceExhaustedError(
        absl::StrCat("injected fault: launch ", launch, " is refused"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Completion> FaultCommunicator::Launch(const Operation& operation, Stream& stream) {
  const absl::Status fault = dice_.OnLaunch();
  if (absl::IsUnavailable(fault)) wrapped().Abort(fault);
  RETURN_IF_ERROR(fault);
  return wrapped().Launch(operation, stream);
}

bool FaultCommunicator::Progress() {
  if (dice_.SkipsProgress()) return false;
  return wrapped().Progress();
}

void FaultCommunicator::Wake() {
  if (dice_.DropsWake()) return;
  wrapped().Wake();
}

std::unique_ptr<Communicator> WithFaults(std::unique_ptr<Communicator> wrapped,
                                         const FaultScript& script) {
  const uint64_t stream =
      (uint64_t{wrapped->id().value()} << 32) + static_cast<uint64_t>(wrapped->rank().value());
  return std::make_unique<FaultCommunicator>(std::move(wrapped), script, stream);
}

absl::StatusOr<std::unique_ptr<Communicator>> FaultTransport::Open(CommunicatorId id,
                                                                   const Group& group,
                                                                   absl::Time deadline) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, wrapped_->Open(id, group, deadline));
  return WithFaults(std::move(opened), script_);
}

}  // namespace pelton
