#include "comm/control/coordinator_server.h"

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/control/bind_address.h"
#include "comm/control/connection_door.h"
#include "comm/control/coordinator_actor.h"
#include "comm/control/coordinator_reactors.h"
#include "comm/control/tls_credentials.h"
#include "comm/control/wire.h"
#include "core/actor/actor_ref.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/base/check.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"
#include "proto/control.grpc.pb.h"

namespace pelton {
namespace {

// Told of the other end of a connection on which a call carried the token.
using OnAuthentic = std::function<void(const std::string& peer)>;

// Turns calls into messages. Threads: gRPC's. Owns: the token.
class Service final : public grpc::Service {
 public:
  Service(ActorRef<CoordinatorActor> coordinator, std::string token, OnAuthentic on_authentic);

 private:
  using JoinCall = CallOf<proto::JoinRequest, proto::JoinResponse>;
  using AskCall = CallOf<proto::AskRequest, proto::ControlAnswer>;
  using ReportCall = CallOf<proto::ReportRequest, proto::ReportResponse>;
  using LeaveCall = CallOf<proto::LeaveRequest, proto::LeaveResponse>;

  // `path` must outlive the service.
  template <typename Request, typename Response>
  void Serve(const char* path, void (Service::*begin)(CallOf<Request, Response>&));
  void ServeHeartbeat(const char* path);
  void Join(JoinCall& call);
  void Ask(AskCall& call);
  void Report(ReportCall& call);
  void Leave(LeaveCall& call);
  bool Authentic(grpc::CallbackServerContext* context) const;

  const ActorRef<CoordinatorActor> coordinator_;
  const std::string token_;
  const OnAuthentic on_authentic_;
  std::atomic<uint64_t> last_number_ = 0;  // of a call or a stream
  int method_count_ = 0;
};

Service::Service(ActorRef<CoordinatorActor> coordinator, std::string token,
                 OnAuthentic on_authentic)
    : coordinator_(std::move(coordinator)),
      token_(std::move(token)),
      on_authentic_(std::move(on_authentic)) {
  Serve("/pelton.proto.Coordinator/Join", &Service::Join);
  Serve("/pelton.proto.Coordinator/Ask", &Service::Ask);
  Serve("/pelton.proto.Coordinator/Report", &Service::Report);
  Serve("/pelton.proto.Coordinator/Leave", &Service::Leave);
  ServeHeartbeat("/pelton.proto.Coordinator/Heartbeat");
}

template <typename Request, typename Response>
void Service::Serve(const char* path, void (Service::*begin)(CallOf<Request, Response>&)) {
  using Call = CallOf<Request, Response>;
  AddMethod(new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::CLIENT_STREAMING,
                                                 nullptr));
  auto make = [this, begin](grpc::CallbackServerContext* context,
                            Response* response) -> grpc::ServerReadReactor<Request>* {
    using Refused = RefusedCall<Request>;  // which reads nothing of it
    if (!Authentic(context)) return new Refused({grpc::StatusCode::UNAUTHENTICATED, ""});
    absl::StatusOr<CallRoom> room = CallRoom::Reserve(coordinator_);
    if (!room.ok()) return new Refused(ToGrpc(room.status()));
    return new Call(++last_number_, *std::move(room), context, response,
                    [this, begin](Call& begun) { (this->*begin)(begun); });
  };
  MarkMethodCallback(method_count_++,
                     new grpc::internal::CallbackClientStreamingHandler<Request, Response>(make));
}

void Service::ServeHeartbeat(const char* path) {
  AddMethod(new grpc::internal::RpcServiceMethod(path, grpc::internal::RpcMethod::BIDI_STREAMING,
                                                 nullptr));
  using Stream = grpc::ServerBidiReactor<proto::HeartbeatRequest, proto::Order>;
  auto make = [this](grpc::CallbackServerContext* context) -> Stream* {
    if (!Authentic(context)) return new RefusedStream({grpc::StatusCode::UNAUTHENTICATED, ""});
    absl::StatusOr<CoordinatorRoom> begin_room = coordinator_.Reserve();
    if (!begin_room.ok()) return new RefusedStream(ToGrpc(begin_room.status()));
    absl::StatusOr<CoordinatorRoom> break_room = coordinator_.Reserve();
    if (!break_room.ok()) return new RefusedStream(ToGrpc(break_room.status()));
    const uint64_t number = ++last_number_;
    auto* const stream = new HeartbeatStream(number, *std::move(break_room));
    // gRPC keeps what is asked of a reactor, its end too, until it has been returned.
    begin_room->Send(BeginStream{number, OwedStream(stream)}).IgnoreError();
    return stream;
  };
  MarkMethodCallback(
      method_count_++,
      new grpc::internal::CallbackBidiHandler<proto::HeartbeatRequest, proto::Order>(make));
}

bool Service::Authentic(grpc::CallbackServerContext* context) const {
  const auto found = context->client_metadata().find(wire::kTokenKey);
  if (found == context->client_metadata().end()) return false;
  if (!wire::SameToken(token_, {found->second.data(), found->second.size()})) return false;
  on_authentic_(context->peer());
  return true;
}

void Service::Join(JoinCall& call) {
  call.set_filler(
      [](Reply reply, proto::JoinResponse* out) { wire::ToProto(*reply.membership, out); });
  call.Begin(call.request().job(), call.request().timeout_us(),
             [&call](CoordinatorState& state, const Call& begun, Outbox* outbox) {
               state.Join(begun, wire::FromProto(call.request()), outbox);
             });
}

void Service::Ask(AskCall& call) {
  const proto::AskRequest& request = call.request();
  absl::StatusOr<ControlQuestion> question = wire::FromProto(request.question());
  if (!question.ok()) return call.AnswerNow(question.status());
  call.set_filler(
      [](Reply reply, proto::ControlAnswer* out) { wire::ToProto(std::move(reply.answer), out); });
  call.Begin(request.caller().job(), request.timeout_us(),
             [&request, question = *std::move(question)](CoordinatorState& state, const Call& begun,
                                                         Outbox* outbox) mutable {
               state.Ask(begun, wire::FromProto(request.caller()), std::move(question), outbox);
             });
}

// The state machine answers these two at once.

void Service::Report(ReportCall& call) {
  const proto::ReportRequest& request = call.request();
  call.Begin(request.caller().job(), 0,
             [&request](CoordinatorState& state, const Call& begun, Outbox* outbox) {
               const absl::Status status =
                   state.Report(wire::FromProto(request.caller()),
                                wire::ErrorFromProto(request.code(), request.message()), outbox);
               outbox->replies.push_back({.call = begun.id, .status = status});
             });
}

void Service::Leave(LeaveCall& call) {
  const proto::LeaveRequest& request = call.request();
  call.Begin(request.caller().job(), 0,
             [&request](CoordinatorState& state, const Call& begun, Outbox* outbox) {
               const absl::Status status = state.Leave(wire::FromProto(request.caller()), outbox);
               outbox->replies.push_back({.call = begun.id, .status = status});
             });
}

// Connections without the token, at most: what a world of ranks may make at once, and no more than
// an eighth of this process's descriptors.
size_t MaxStrangers() {
  constexpr size_t kMost = 4096;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return kMost;
  return std::clamp<size_t>(files.rlim_cur / 8, 1, kMost);
}

// Threads: as CoordinatorServer. Owns: the actor and its thread, service and gRPC's server, ended
// in reverse order: whatever gRPC still has to say finds the actor alive.
class GrpcCoordinatorServer final : public CoordinatorServer {
 public:
  explicit GrpcCoordinatorServer(const CoordinatorOptions& options)
      : executor_({.name = "coordinator", .is_counted = false}),
        coordinator_(Spawn<CoordinatorActor>(
            executor_, {.name = "coordinator", .mailbox_capacity = kCoordinatorMailbox},
            options.heartbeat_timeout)),
        service_(coordinator_, options.token,
                 [this](const std::string& peer) { door_->Admit(peer); }) {
    absl::StatusOr<CoordinatorRoom> room = coordinator_.Reserve();
    PELTON_CHECK_OK(room.status());  // of an empty mailbox
    stop_room_ = *std::move(room);
  }
  ~GrpcCoordinatorServer() override {
    if (door_ != nullptr) door_->Close();
    stop_room_->Send(EndService{}).IgnoreError();  // one that has ended has ended all of them
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() +
                      absl::ToChronoMilliseconds(limits::kStopTimeout));
    server_->Wait();
  }

  absl::Status Listen(const CoordinatorOptions& options);
  const std::string& address() const override { return door_->address(); }
  absl::Status AwaitEmpty(absl::Time deadline) override;

 private:
  ThreadExecutor executor_;
  const ActorRef<CoordinatorActor> coordinator_;
  std::optional<CoordinatorRoom> stop_room_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<ConnectionDoor> door_;  // set before the first call comes
};

absl::Status GrpcCoordinatorServer::AwaitEmpty(absl::Time deadline) {
  // The actor keeps the deadline, because it knows who is still there.
  return coordinator_.Ask(pelton::AwaitEmpty{deadline, {}}, absl::InfiniteFuture())
      .Await(deadline + limits::kStopTimeout);
}

void Configure(grpc::ServerBuilder* builder, absl::Duration heartbeat_timeout) {
  const int silence_ms = wire::SilenceToGrpc(heartbeat_timeout);
  constexpr int kMaxStreamsPerConnection = 1024;
  constexpr size_t kMaxBufferBytes = size_t{1} << 30;
  builder->SetMaxReceiveMessageSize(wire::kMaxRequestBytes);
  builder->SetMaxSendMessageSize(wire::kMaxReplyBytes);
  builder->SetResourceQuota(grpc::ResourceQuota("coordinator").Resize(kMaxBufferBytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, silence_ms);
  // A rank has its heartbeats' stream open all the time. An idle client's connection is closed,
  // because it would hold a descriptor of this process for nothing.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, silence_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, silence_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // The clients ping as often; gRPC would take that for an attack.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 100);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

absl::Status GrpcCoordinatorServer::Listen(const CoordinatorOptions& options) {
  ASSIGN_OR_RETURN(const std::string host, ResolveServingAddress(options.interface));
  ASSIGN_OR_RETURN(const auto credentials, MakeServerCredentials(options.tls));
  ASSIGN_OR_RETURN(door_, ConnectionDoor::Listen(host, options.port));
  using Builder = grpc::ServerBuilder;
  Builder builder;
  Configure(&builder, options.heartbeat_timeout);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      Builder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.RegisterService(&service_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot serve at ", door_->address()));
  }
  door_->Open(MaxStrangers(), [this](int socket) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = socket;
    acceptor_->HandleNewConnection(&connection);
  });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const CoordinatorOptions& options) {
  RETURN_IF_ERROR(wire::ValidateToken(options.token));
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("port: is ", options.port, ", must be 0 to 65535"));
  }
  if (options.heartbeat_timeout < absl::Milliseconds(10)) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeat_timeout: is ",
                                                   absl::FormatDuration(options.heartbeat_timeout),
                                                   ", must be at least 10ms"));
  }
  RaiseDescriptorLimit();  // one for each rank
  auto server = std::make_unique<GrpcCoordinatorServer>(options);
  RETURN_IF_ERROR(server->Listen(options));
  return server;
}

}  // namespace pelton
