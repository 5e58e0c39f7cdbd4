#include "comm/collectives/agreement.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/stream.h"

namespace pelton {

Rank Agreement::next() const {
  return Rank((communicator_.rank().value() + 1) % communicator_.world_size().value());
}

Rank Agreement::previous() const {
  const int32_t n = communicator_.world_size().value();
  return Rank((communicator_.rank().value() + n - 1) % n);
}

void Agreement::Start(const Operation& operation) {
  mine_ = operation;
  mine_.set_source({});  // addresses are nobody else's business
  mine_.set_target({});
  const bool is_alone = communicator_.world_size() == WorldSize(1);
  send_launched_ = recv_launched_ = send_done_ = recv_done_ = is_alone;
}

absl::Status Agreement::LaunchMessages() {
  Operation message;
  message.dtype = DType::kUInt8;
  message.count = sizeof(Operation);
  message.tag = tag_;
  HostStream stream;
  if (!send_launched_) {
    message.kind = OperationKind::kSend;
    message.peer = next().value();
    message.set_source(Locate(&mine_, sizeof(mine_)));
    ASSIGN_OR_RETURN(send_, communicator_.Launch(message, stream));
    send_launched_ = true;
  }
  if (!recv_launched_) {
    message.kind = OperationKind::kRecv;
    message.peer = previous().value();
    message.set_source({});
    message.set_target(Locate(&theirs_, sizeof(theirs_)));
    ASSIGN_OR_RETURN(recv_, communicator_.Launch(message, stream));
    recv_launched_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Agreement::Advance() {
  const absl::Status launched = LaunchMessages();
  if (!launched.ok() && !absl::IsResourceExhausted(launched)) return launched;
  if (send_launched_ && !send_done_) {
    const OperationRunner::State state = communicator_.Query(send_);
    RETURN_IF_ERROR(state.status);
    send_done_ = state.done;
  }
  if (recv_launched_ && !recv_done_) {
    const OperationRunner::State state = communicator_.Query(recv_);
    RETURN_IF_ERROR(state.status);
    recv_done_ = state.done;
    if (recv_done_) RETURN_IF_ERROR(Compare());
  }
  return send_done_ && recv_done_;
}

absl::Status Agreement::Compare() const {
  const Rank rank = communicator_.rank();
  const std::string difference = rank < previous() ? DifferenceOf(mine_, rank, theirs_, previous())
                                                   : DifferenceOf(theirs_, previous(), mine_, rank);
  if (difference.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Describe(mine_), ": ", difference));
}

std::optional<Rank> Agreement::Awaited() const {
  if (recv_done_) return std::nullopt;
  return previous();
}

}  // namespace pelton
