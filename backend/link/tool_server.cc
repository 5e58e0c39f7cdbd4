#include "backend/link/tool_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backend/link/sight.h"
#include "core/base/clock.h"
#include "proto/daemon.grpc.pb.h"

namespace pelton {
namespace {

constexpr absl::Duration kStopPatience = absl::Seconds(1);
// For a model that does not answer, because a stage computes.
constexpr absl::Duration kLookPatience = absl::Seconds(1);

}  // namespace

// Threads: gRPC's. Owns: the gRPC server and its socket.
class ToolServer::Service final : public proto::Daemon::Service {
 public:
  Service(std::string path, ToolAnswers answers)
      : path_(std::move(path)), answers_(std::move(answers)) {}
  ~Service() override {
    if (grpc_ == nullptr) return;
    grpc_->Shutdown(absl::ToChronoTime(ToWallTime(Clock::Real().Now() + kStopPatience)));
    unlink(path_.c_str());
  }

  absl::Status Listen() {
    unlink(path_.c_str());  // of a process that was killed
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", path_), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    grpc_ = builder.BuildAndStart();
    if (grpc_ != nullptr) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("gRPC cannot listen at ", path_, "; check the folder's permissions"));
  }

  void SetHealthy(bool is_healthy) { grpc_->GetHealthCheckService()->SetServingStatus(is_healthy); }

 private:
  grpc::Status Status(grpc::ServerContext*, const proto::StatusRequest*,
                      proto::LinkStatus* status) override {
    answers_.status(status);
    return grpc::Status::OK;
  }

  grpc::Status Stop(grpc::ServerContext*, const proto::StopRequest*,
                    proto::StopResponse*) override {
    if (answers_.stop == nullptr) {
      return {grpc::StatusCode::FAILED_PRECONDITION,
              "this rank's backend is in its own process; end the rank, or the job"};
    }
    answers_.stop();
    return grpc::Status::OK;
  }

  const std::string path_;
  const ToolAnswers answers_;
  std::unique_ptr<grpc::Server> grpc_;
};

ToolServer::ToolServer(std::unique_ptr<Service> service) : service_(std::move(service)) {}

ToolServer::~ToolServer() = default;

absl::StatusOr<std::unique_ptr<ToolServer>> ToolServer::Start(std::string path,
                                                              ToolAnswers answers) {
  auto service = std::make_unique<Service>(std::move(path), std::move(answers));
  if (absl::Status listening = service->Listen(); !listening.ok()) return listening;
  return std::unique_ptr<ToolServer>(new ToolServer(std::move(service)));
}

absl::StatusOr<std::unique_ptr<ToolServer>> ToolServer::StartFor(const Backend* backend,
                                                                 std::string path) {
  const auto status = [backend](proto::LinkStatus* answer) {
    *answer = SightOf(*backend, Clock::Real().Now() + kLookPatience);
    answer->set_trainer_pid(getpid());
  };
  return Start(std::move(path), {status, nullptr});
}

void ToolServer::SetHealthy(bool is_healthy) { service_->SetHealthy(is_healthy); }

}  // namespace pelton
