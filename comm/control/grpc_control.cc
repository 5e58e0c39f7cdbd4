#include "comm/control/grpc_control.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/control/coordinator_messages.h"
#include "comm/control/heartbeat_client.h"
#include "comm/control/tls_credentials.h"
#include "comm/control/wire.h"
#include "core/base/clock.h"
#include "core/base/inbox.h"
#include "core/base/long_wait.h"
#include "core/base/sharing.h"
#include "core/base/status.h"
#include "proto/control.grpc.pb.h"

namespace pelton {
namespace {

// How much longer than the coordinator a call waits: its own time-out, which names the missing
// ranks, is to arrive first.
constexpr absl::Duration kGrace = absl::Seconds(1);

// How long a connection is waited for before its last failure is looked at.
constexpr absl::Duration kLookInterval = absl::Seconds(1);

std::shared_ptr<grpc::Channel> MakeChannel(
    const GrpcControlOptions& options,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  constexpr int kFirstRetryMs = 50;
  constexpr int kLastRetryMs = 1000;
  // How long one attempt may take. A coordinator whom many ranks meet at once, on a machine with
  // few cores, answers late; one that never answers costs a longer attempt and nothing else.
  constexpr int kAttemptMs = 5000;
  const int silence_ms = wire::SilenceToGrpc(options.heartbeat_timeout / 2);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(wire::kMaxReplyBytes);
  arguments.SetMaxSendMessageSize(wire::kMaxRequestBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstRetryMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kAttemptMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLastRetryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, silence_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence_ms);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The job's token goes to the coordinator and nobody else.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A connection of our own: one that another job's client made must not serve this one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!options.tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  }
  return grpc::CreateCustomChannel(options.address, credentials, arguments);
}

std::chrono::system_clock::time_point ToGrpcTime(absl::Time time) {
  // Far times do not fit the clock that gRPC takes.
  return absl::ToChronoTime(
      ToWallTime(std::min(time, Clock::Real().Now() + absl::Hours(24 * 365))));
}

// Threads: as Control. Owns: channel, stream and inbox.
class GrpcControl final : public Control {
 public:
  GrpcControl(GrpcControlOptions options, std::shared_ptr<grpc::Channel> channel)
      : options_(std::move(options)),
        channel_(std::move(channel)),
        stub_(proto::Coordinator::NewStub(channel_)) {}
  ~GrpcControl() override { Disconnect(); }

  absl::StatusOr<Membership> Join(const JoinRequest& request, absl::Time deadline) override;
  absl::StatusOr<ControlAnswer> Ask(ControlQuestion question, absl::Time deadline) override;
  void SetRound(Round round) override;
  absl::Status Report(const absl::Status& reason, absl::Time deadline) override;
  absl::Status Leave(absl::Time deadline) override;
  void OnOrder(OrderCallback callback) override { inbox_.SetCallback(std::move(callback)); }

 private:
  template <typename Request, typename Response>
  using Method = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (
      proto::Coordinator::Stub::*)(grpc::ClientContext*, const Request&, grpc::CompletionQueue*);
  // Runs one call of the stub; its errors name this rank and, where it is gone, the coordinator.
  // The wait may be interrupted, and is told of when it lasts (core/base/long_wait.h).
  template <typename Request, typename Response>
  absl::Status Run(Rank rank, Method<Request, Response> method, const Request& request,
                   absl::Time deadline, Response* response);
  // Until the queue's only call has ended. Errors: InterruptedError: the call was cancelled.
  absl::Status AwaitEnd(Rank rank, grpc::ClientContext& context, grpc::CompletionQueue& queue);
  absl::Status Connect(const JoinRequest& request, absl::Time deadline);
  // Why the last attempt to connect failed; "" if that is not known.
  std::string LastConnectionError();
  absl::Status ToAbsl(const grpc::Status& status, const grpc::ClientContext& context) const;
  absl::StatusOr<Caller> Self();
  // Ends the stream and every call under way.
  void Disconnect();

  const GrpcControlOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<proto::Coordinator::Stub> stub_;
  Inbox<Order> inbox_;

  // Set once by Join, which happens before all other calls.
  std::optional<Caller> self_;
  std::unique_ptr<HeartbeatClient> heartbeat_;
  std::atomic<bool> left_{false};
  SharedList<grpc::ClientContext*> under_way_;
};

template <typename Request, typename Response>
absl::Status GrpcControl::Run(Rank rank, Method<Request, Response> method, const Request& request,
                              absl::Time deadline, Response* response) {
  grpc::ClientContext context;
  context.AddMetadata(wire::kTokenKey, options_.token);
  context.set_deadline(ToGrpcTime(deadline));
  under_way_.Add(&context);
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto call = (stub_.get()->*method)(&context, request, &queue);
  call->Finish(response, &status, nullptr);
  const absl::Status interrupted = AwaitEnd(rank, context, queue);
  under_way_.Remove(&context);
  if (!interrupted.ok()) return Annotate(interrupted, absl::StrCat("rank ", rank.value()));
  return Annotate(ToAbsl(status, context), absl::StrCat("rank ", rank.value()));
}

absl::Status GrpcControl::AwaitEnd(Rank rank, grpc::ClientContext& context,
                                   grpc::CompletionQueue& queue) {
  const absl::Time began = Clock::Real().Now();
  StallReport report;
  absl::Status interrupted;
  void* tag = nullptr;
  bool has_ended = false;
  while (queue.AsyncNext(&tag, &has_ended, ToGrpcTime(Clock::Real().Now() + InterruptSlice())) ==
         grpc::CompletionQueue::TIMEOUT) {
    if (!interrupted.ok()) continue;
    interrupted = CheckInterrupt();
    if (!interrupted.ok()) context.TryCancel();
    report.Look(began, Clock::Real().Now(), [&](absl::string_view waited) {
      return absl::StrCat("rank ", rank.value(), " has waited ", waited, " for other ranks in ",
                          CallName::Current(), "; the coordinator is at ", options_.address);
    });
  }
  queue.Shutdown();
  while (queue.Next(&tag, &has_ended)) {
  }
  return interrupted;
}

absl::Status GrpcControl::ToAbsl(const grpc::Status& status,
                                 const grpc::ClientContext& context) const {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (context.GetServerTrailingMetadata().contains(wire::kOriginKey)) {
    return {code, status.error_message()};
  }
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return absl::UnavailableError(
          absl::StrCat("coordinator lost at ", options_.address, ": ", status.error_message()));
    case grpc::StatusCode::UNAUTHENTICATED:
      return absl::UnauthenticatedError(
          absl::StrCat("the coordinator at ", options_.address, " refuses this job's token"));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError(
          absl::StrCat("the coordinator at ", options_.address, " did not answer in time"));
    default:
      return {code,
              absl::StrCat("coordinator at ", options_.address, ": ", status.error_message())};
  }
}

absl::StatusOr<Caller> GrpcControl::Self() {
  if (!self_) return absl::FailedPreconditionError("this rank has not joined");
  if (left_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", self_->rank.value(), " has left the job"));
  }
  return *self_;
}

absl::Status GrpcControl::Connect(const JoinRequest& request, absl::Time deadline) {
  const absl::Time start = Clock::Real().Now();
  const std::string who = absl::StrCat("rank ", request.rank.value(), ": job ", Quote(request.job));
  std::string reason;
  do {
    const absl::Time look = std::min(deadline, Clock::Real().Now() + kLookInterval);
    do {
      const absl::Time slice = std::min(look, Clock::Real().Now() + kInterruptInterval);
      if (channel_->WaitForConnected(ToGrpcTime(slice))) return absl::OkStatus();
      RETURN_IF_ERROR(Annotate(CheckInterrupt(), who));
    } while (Clock::Real().Now() < look);
    reason = LastConnectionError();
    // A coordinator that does not listen yet may come up, but certificates that do not match never
    // will.
    if (options_.tls.enabled() && absl::StrContains(reason, "Ssl handshake failed")) {
      return absl::UnauthenticatedError(absl::StrCat(who, ": the coordinator at ", options_.address,
                                                     " and this rank's certificates: ", reason));
    }
  } while (Clock::Real().Now() < deadline);
  return absl::DeadlineExceededError(absl::StrCat(
      who, ": no coordinator answered at ", options_.address, " within ",
      absl::FormatDuration(absl::Trunc(Clock::Real().Now() - start, absl::Milliseconds(1))),
      reason.empty() ? "" : absl::StrCat(": ", reason)));
}

std::string GrpcControl::LastConnectionError() {
  // A call that does not wait for the connection fails with what broke the last one. Should there
  // be a connection after all, it is refused: it carries no token.
  grpc::ClientContext context;
  context.set_deadline(ToGrpcTime(Clock::Real().Now() + kLookInterval));
  proto::LeaveResponse response;
  const grpc::Status status = stub_->Leave(&context, proto::LeaveRequest(), &response);
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ? status.error_message() : "";
}

absl::StatusOr<Membership> GrpcControl::Join(const JoinRequest& request, absl::Time deadline) {
  if (self_) return absl::FailedPreconditionError("this rank has already joined");
  RETURN_IF_ERROR(Connect(request, deadline));
  proto::JoinRequest message;
  wire::ToProto(request, &message);
  message.set_timeout_us(wire::TimeoutToProto(Clock::Real().Now(), deadline));
  proto::JoinResponse response;
  RETURN_IF_ERROR(Run(request.rank, &proto::Coordinator::Stub::AsyncJoin, message,
                      deadline + kGrace, &response));
  const Caller self{request.job, request.rank, Generation(response.generation())};
  heartbeat_ = std::make_unique<HeartbeatClient>(
      stub_.get(), &inbox_,
      HeartbeatClient::Options{self, options_.address, options_.token,
                               options_.heartbeat_interval});
  RETURN_IF_ERROR(heartbeat_->AwaitOpen(deadline + kGrace));
  self_ = self;
  return wire::FromProto(response);
}

absl::StatusOr<ControlAnswer> GrpcControl::Ask(ControlQuestion question, absl::Time deadline) {
  ASSIGN_OR_RETURN(const Caller self, Self());
  proto::AskRequest message;
  wire::ToProto(self, message.mutable_caller());
  wire::ToProto(std::move(question), message.mutable_question());
  message.set_timeout_us(wire::TimeoutToProto(Clock::Real().Now(), deadline));
  proto::ControlAnswer response;
  RETURN_IF_ERROR(
      Run(self.rank, &proto::Coordinator::Stub::AsyncAsk, message, deadline + kGrace, &response));
  return wire::FromProto(std::move(response));
}

void GrpcControl::SetRound(Round round) {
  if (heartbeat_ != nullptr) heartbeat_->SetRound(round);
}

absl::Status GrpcControl::Report(const absl::Status& reason, absl::Time deadline) {
  ASSIGN_OR_RETURN(const Caller self, Self());
  proto::ReportRequest message;
  wire::ToProto(self, message.mutable_caller());
  message.set_code(static_cast<int>(reason.code()));
  message.set_message(std::string(reason.message().substr(0, limits::kMaxKeyBytes)));
  proto::ReportResponse response;
  return Run(self.rank, &proto::Coordinator::Stub::AsyncReport, message, deadline, &response);
}

absl::Status GrpcControl::Leave(absl::Time deadline) {
  if (left_) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Caller self, Self());
  proto::LeaveRequest message;
  wire::ToProto(self, message.mutable_caller());
  proto::LeaveResponse response;
  absl::Status status =
      Run(self.rank, &proto::Coordinator::Stub::AsyncLeave, message, deadline, &response);
  left_ = true;
  Disconnect();
  return status;
}

void GrpcControl::Disconnect() {
  under_way_.ForEach([](grpc::ClientContext* context) { context->TryCancel(); });
  if (heartbeat_ != nullptr) heartbeat_->Stop();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Control>> MakeGrpcControl(const GrpcControlOptions& options) {
  RETURN_IF_ERROR(wire::ValidateToken(options.token));
  if (options.address.empty()) return absl::InvalidArgumentError("address: is empty");
  if (options.heartbeat_interval <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeat_interval: is ",
                                                   absl::FormatDuration(options.heartbeat_interval),
                                                   ", must be positive"));
  }
  ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(options.tls));
  return std::make_unique<GrpcControl>(options, MakeChannel(options, credentials));
}

}  // namespace pelton
