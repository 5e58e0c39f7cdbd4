#include "comm/control/parked_call.h"

#include "comm/control/coordinator_shell.h"
#include "comm/control/wire.h"

namespace pelton {

grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (status.ok()) return grpc::Status::OK;
  context->AddTrailingMetadata(wire::kOriginKey, wire::kOriginCoordinator);
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

void ParkedCall::Answer(Reply reply) {
  const grpc::Status status = ToGrpc(reply.status, context_);
  if (status.ok()) Fill(std::move(reply));
  End(status);
}

void ParkedCall::Cancel() {
  is_cancelled_.store(true);  // before the shell's lock: Park looks under it
  shell_->OnCallCancelled(this);
}

}  // namespace pelton
