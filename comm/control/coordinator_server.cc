#include "comm/control/coordinator_server.h"

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/control/bind_address.h"
#include "comm/control/connection_door.h"
#include "comm/control/coordinator_shell.h"
#include "comm/control/tls_credentials.h"
#include "comm/control/wire.h"
#include "core/base/clock.h"
#include "core/base/descriptor_limit.h"
#include "core/base/status.h"
#include "proto/control.grpc.pb.h"

namespace pelton {
namespace {

// A stream that ends before it has begun. Threads: gRPC's. Owns: itself, until OnDone.
class RefusedStream final : public grpc::ServerBidiReactor<proto::HeartbeatRequest, proto::Order> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Told of the other end of a connection on which a call carried the token.
using OnAuthentic = std::function<void(const std::string& peer)>;

// Turns calls into events. Threads: gRPC's. Owns: the token; borrows the shell.
class Service final : public proto::Coordinator::CallbackService {
 public:
  Service(CoordinatorShell* shell, std::string token, OnAuthentic on_authentic)
      : shell_(*shell), token_(std::move(token)), on_authentic_(std::move(on_authentic)) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const proto::JoinRequest* request,
                                 proto::JoinResponse* response) override;
  grpc::ServerUnaryReactor* KeyValue(grpc::CallbackServerContext* context,
                                     const proto::KeyValueRequest* request,
                                     proto::KeyValueResponse* response) override;
  grpc::ServerUnaryReactor* AllGather(grpc::CallbackServerContext* context,
                                      const proto::AllGatherRequest* request,
                                      proto::AllGatherResponse* response) override;
  grpc::ServerUnaryReactor* SelectPeers(grpc::CallbackServerContext* context,
                                        const proto::SelectPeersRequest* request,
                                        proto::SelectPeersResponse* response) override;
  grpc::ServerBidiReactor<proto::HeartbeatRequest, proto::Order>* Heartbeat(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const proto::ReportRequest* request,
                                   proto::ReportResponse* response) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const proto::LeaveRequest* request,
                                  proto::LeaveResponse* response) override;

 private:
  bool Authentic(grpc::CallbackServerContext* context) const;
  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context) const;
  grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context,
                                      CoordinatorShell::Feed feed);

  CoordinatorShell& shell_;
  const std::string token_;
  const OnAuthentic on_authentic_;
};

bool Service::Authentic(grpc::CallbackServerContext* context) const {
  const auto found = context->client_metadata().find(wire::kTokenKey);
  if (found == context->client_metadata().end()) return false;
  if (!wire::SameToken(token_, {found->second.data(), found->second.size()})) return false;
  on_authentic_(context->peer());
  return true;
}

grpc::ServerUnaryReactor* Service::Refuse(grpc::CallbackServerContext* context) const {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish({grpc::StatusCode::UNAUTHENTICATED, ""});
  return reactor;
}

grpc::ServerUnaryReactor* Service::AnswerNow(grpc::CallbackServerContext* context,
                                             CoordinatorShell::Feed feed) {
  if (!Authentic(context)) return Refuse(context);
  const grpc::Status status = ToGrpc(shell_.Apply(feed), context);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

grpc::ServerUnaryReactor* Service::Join(grpc::CallbackServerContext* context,
                                        const proto::JoinRequest* request,
                                        proto::JoinResponse* response) {
  if (!Authentic(context)) return Refuse(context);
  auto* const parked = new ParkedCallOf<proto::JoinResponse>(
      &shell_, context, request->job(), response,
      [](Reply reply, proto::JoinResponse* out) { wire::ToProto(*reply.membership, out); });
  shell_.Park(parked, request->timeout_us(),
              [&](CoordinatorState& state, const Call& call, Outbox* outbox) {
                state.Join(call, wire::FromProto(*request), outbox);
              });
  return parked;
}

grpc::ServerUnaryReactor* Service::KeyValue(grpc::CallbackServerContext* context,
                                            const proto::KeyValueRequest* request,
                                            proto::KeyValueResponse* response) {
  if (!Authentic(context)) return Refuse(context);
  auto* const parked =
      new ParkedCallOf<proto::KeyValueResponse>(&shell_, context, request->caller().job(), response,
                                                [](Reply reply, proto::KeyValueResponse* out) {
                                                  out->set_value(std::move(reply.result.value));
                                                  out->set_number(reply.result.number);
                                                });
  shell_.Park(parked, request->timeout_us(),
              [&](CoordinatorState& state, const Call& call, Outbox* outbox) {
                state.KeyValue(call, wire::FromProto(request->caller()), wire::FromProto(*request),
                               outbox);
              });
  return parked;
}

grpc::ServerUnaryReactor* Service::AllGather(grpc::CallbackServerContext* context,
                                             const proto::AllGatherRequest* request,
                                             proto::AllGatherResponse* response) {
  if (!Authentic(context)) return Refuse(context);
  auto* const parked = new ParkedCallOf<proto::AllGatherResponse>(
      &shell_, context, request->caller().job(), response,
      [](Reply reply, proto::AllGatherResponse* out) {
        for (const std::string& value : *reply.gathered) out->add_values(value);
      });
  shell_.Park(parked, request->timeout_us(),
              [&](CoordinatorState& state, const Call& call, Outbox* outbox) {
                state.AllGather(call, wire::FromProto(request->caller()), wire::FromProto(*request),
                                outbox);
              });
  return parked;
}

grpc::ServerUnaryReactor* Service::SelectPeers(grpc::CallbackServerContext* context,
                                               const proto::SelectPeersRequest* request,
                                               proto::SelectPeersResponse* response) {
  return AnswerNow(context, [&](CoordinatorState& state, Outbox*) {
    ASSIGN_OR_RETURN(const Matching matching,
                     state.SelectPeers(wire::FromProto(request->caller()),
                                       wire::FromProto(*request), Clock::Real().Now()));
    response->mutable_peers()->Assign(matching.begin(), matching.end());
    return absl::OkStatus();
  });
}

grpc::ServerBidiReactor<proto::HeartbeatRequest, proto::Order>* Service::Heartbeat(
    grpc::CallbackServerContext* context) {
  if (!Authentic(context)) return new RefusedStream({grpc::StatusCode::UNAUTHENTICATED, ""});
  auto* const stream = new HeartbeatStream(&shell_);
  shell_.AddStream(stream);
  stream->Start();
  return stream;
}

grpc::ServerUnaryReactor* Service::Report(grpc::CallbackServerContext* context,
                                          const proto::ReportRequest* request,
                                          proto::ReportResponse* response) {
  return AnswerNow(context, [request](CoordinatorState& state, Outbox* outbox) {
    return state.Report(wire::FromProto(request->caller()), Rank(request->culprit()),
                        wire::ErrorFromProto(request->code(), request->message()), outbox);
  });
}

grpc::ServerUnaryReactor* Service::Leave(grpc::CallbackServerContext* context,
                                         const proto::LeaveRequest* request,
                                         proto::LeaveResponse* response) {
  return AnswerNow(context, [request](CoordinatorState& state, Outbox* outbox) {
    return state.Leave(wire::FromProto(request->caller()), outbox);
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

// Threads: as CoordinatorServer. Owns: shell, service and gRPC's server, ended in reverse order.
class GrpcCoordinatorServer final : public CoordinatorServer {
 public:
  explicit GrpcCoordinatorServer(const CoordinatorOptions& options)
      : shell_(options.heartbeat_timeout),
        service_(&shell_, options.token, [this](const std::string& peer) { door_->Admit(peer); }) {}
  ~GrpcCoordinatorServer() override {
    if (door_ != nullptr) door_->Close();
    shell_.Stop();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() +
                      absl::ToChronoMilliseconds(limits::kStopTimeout));
    server_->Wait();
  }

  absl::Status Listen(const CoordinatorOptions& options);
  const std::string& address() const override { return door_->address(); }
  absl::Status AwaitEmpty(absl::Time deadline) override { return shell_.AwaitEmpty(deadline); }

 private:
  CoordinatorShell shell_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<ConnectionDoor> door_;  // set before the first call comes
};

void Configure(grpc::ServerBuilder* builder, absl::Duration heartbeat_timeout) {
  const int silence_ms = static_cast<int>(absl::ToInt64Milliseconds(heartbeat_timeout));
  constexpr int kMaxStreamsPerConnection = 1024;
  constexpr size_t kMaxBufferBytes = size_t{1} << 30;
  builder->SetMaxReceiveMessageSize(wire::kMaxRequestBytes);
  builder->SetMaxSendMessageSize(wire::kMaxReplyBytes);
  builder->SetResourceQuota(grpc::ResourceQuota("coordinator").Resize(kMaxBufferBytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, silence_ms);
  // A rank has its heartbeats' stream open all the time; who holds a connection for nothing holds a
  // descriptor of this process.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, silence_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, silence_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // The clients ping as often; gRPC would take that for an attack.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 100);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

absl::Status GrpcCoordinatorServer::Listen(const CoordinatorOptions& options) {
  ASSIGN_OR_RETURN(const std::string host, ResolveBindAddress(options.interface));
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
