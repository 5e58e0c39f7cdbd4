#include "backend/link/daemon_questions.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "backend/link/link_client.h"
#include "backend/link/link_socket.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "proto/daemon.grpc.pb.h"

namespace pelton {
namespace {

absl::StatusOr<proto::LinkStatus> Ask(const std::string& path, proto::LinkHello::Purpose purpose,
                                      absl::Time deadline) {
  ASSIGN_OR_RETURN(Descriptor connected, LinkSocket::Connect(path, deadline));
  LinkSocket socket(std::move(connected));
  proto::LinkHello hello;
  hello.set_version(kLinkProtocolVersion);
  hello.set_purpose(purpose);
  RETURN_IF_ERROR(socket.Send(hello, deadline));
  proto::LinkWelcome welcome;
  RETURN_IF_ERROR(socket.Receive(welcome, deadline));
  if (welcome.code() != 0) return absl::FailedPreconditionError(welcome.message());
  proto::LinkStatus status;
  if (purpose == proto::LinkHello::STATUS) RETURN_IF_ERROR(socket.Receive(status, deadline));
  return status;
}

absl::StatusOr<proto::LinkStatus> AskToolServer(const std::string& path, absl::Time deadline) {
  const auto stub = proto::Daemon::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", path), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(ToWallTime(deadline)));
  proto::LinkStatus status;
  const grpc::Status asked = stub->Status(&context, {}, &status);
  if (asked.ok()) return status;
  const std::string text = absl::StrCat(path, ": ", asked.error_message());
  if (asked.error_code() == grpc::StatusCode::UNAVAILABLE) return absl::NotFoundError(text);
  return absl::DeadlineExceededError(text);
}

}  // namespace

absl::StatusOr<proto::LinkStatus> AskStatus(const std::string& path, absl::Time deadline) {
  if (absl::EndsWith(path, ".grpc")) return AskToolServer(path, deadline);
  return Ask(path, proto::LinkHello::STATUS, deadline);
}

absl::Status AskToStop(const std::string& path, absl::Time deadline) {
  return Ask(path, proto::LinkHello::STOP, deadline).status();
}

absl::Status TellOfNoHeir(const std::string& path, absl::Time deadline) {
  return Ask(path, proto::LinkHello::NO_HEIR, deadline).status();
}

}  // namespace pelton
