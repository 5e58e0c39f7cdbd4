// gRPC's calls and streams, as the coordinator's actor serves them.
#ifndef PELTON_COMM_CONTROL_COORDINATOR_REACTORS_H_
#define PELTON_COMM_CONTROL_COORDINATOR_REACTORS_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/control/coordinator_actor.h"
#include "core/actor/actor_ref.h"
#include "proto/control.grpc.pb.h"

namespace pelton {

// gRPC deletes a reactor's operations once each of its reactions has returned and it has been
// finished, and calls OnDone then. Finished is what only one may do: a call that was handed over,
// and a stream, by whoever holds the OwedCall or OwedStream. So the actor may use what is in its
// tables, and a reaction may use its own object until it returns.

// What a call reports to the coordinator has its room from the call's beginning on.
struct CallRoom {
  CoordinatorRoom begin;
  CoordinatorRoom cancel;

  // Errors: those of ActorRef::Reserve.
  static absl::StatusOr<CallRoom> Reserve(const ActorRef<CoordinatorActor>& coordinator);
};

// A call with one request. Threads: Begin and AnswerNow in the reaction to the request's arrival;
// the rest as ServedCall. Owns: as ServedCall.
class GrpcCall : public ServedCall {
 public:
  using Feeding = absl::AnyInvocable<void(CoordinatorState&, const Call&, Outbox*)>;

  // `number` is this call's alone.
  GrpcCall(uint64_t number, CallRoom room, grpc::CallbackServerContext* context)
      : number_(number), room_(std::move(room)), context_(context) {}

  // Hands the call over to the coordinator, which has it fed by `feed`.
  void Begin(std::string job, int64_t timeout_us, Feeding feed);
  // Answers a call that is not handed over.
  void AnswerNow(const absl::Status& status);

  void Feed(CoordinatorState& state, const Call& call, Outbox* outbox) override {
    feed_(state, call, outbox);
  }
  void Answer(Reply reply) override;
  bool is_cancelled() const override { return is_cancelled_.load(); }

 protected:
  // That nobody waits for the reply any more. It may be handed over, or not yet.
  void Cancel();
  virtual void Fill(Reply reply) = 0;
  virtual void End(const grpc::Status& status) = 0;

 private:
  const uint64_t number_;
  CallRoom room_;
  grpc::CallbackServerContext* const context_;
  Feeding feed_;
  std::atomic<bool> is_cancelled_ = false;
};

// A unary call, served as one whose client streams: so gRPC asks for the request when it is told
// to, and not before anybody has looked who calls. Threads: as GrpcCall. Owns: the request.
template <typename Request, typename Response>
class CallOf final : public grpc::ServerReadReactor<Request>, public GrpcCall {
 public:
  using BeginOf = std::function<void(CallOf& call)>;
  using Filler = void (*)(Reply reply, Response* response);

  // `begin` answers the call or hands it over, once its request is there.
  CallOf(uint64_t number, CallRoom room, grpc::CallbackServerContext* context, Response* response,
         BeginOf begin)
      : GrpcCall(number, std::move(room), context), response_(response), begin_(std::move(begin)) {
    this->StartRead(&request_);
  }

  // What writes a successful reply into the response, where there is something to write.
  void set_filler(Filler fill) { fill_ = fill; }
  const Request& request() const { return request_; }

  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish({grpc::StatusCode::INVALID_ARGUMENT, "a call without a request"});
    begin_(*this);
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override { delete this; }

 private:
  void Fill(Reply reply) override {
    if (fill_ != nullptr) fill_(std::move(reply), response_);
  }
  void End(const grpc::Status& status) override { this->Finish(status); }

  Request request_;
  Response* const response_;
  const BeginOf begin_;
  Filler fill_ = nullptr;
};

// A call that ends before its request is read. Threads: gRPC's. Owns: itself, until OnDone.
template <typename Request>
class RefusedCall final : public grpc::ServerReadReactor<Request> {
 public:
  explicit RefusedCall(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

// A stream that ends before it has begun. Threads: gRPC's. Owns: itself, until OnDone.
class RefusedStream final : public grpc::ServerBidiReactor<proto::HeartbeatRequest, proto::Order> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Threads: as ServedStream; the reactions are gRPC's. Owns: as ServedStream.
class HeartbeatStream final : public grpc::ServerBidiReactor<proto::HeartbeatRequest, proto::Order>,
                              public ServedStream {
 public:
  // `number` is this stream's alone; `break_room` is for its one StreamBroke.
  HeartbeatStream(uint64_t number, CoordinatorRoom break_room)
      : number_(number), break_room_(std::move(break_room)) {}

  void Read(CoordinatorRoom room) override;
  void Write(proto::Order order, CoordinatorRoom room) override;
  void End(const absl::Status& status) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { Break(); }
  void OnDone() override { delete this; }

 private:
  void Break();

  const uint64_t number_;
  proto::HeartbeatRequest incoming_;
  std::optional<CoordinatorRoom> read_room_;
  proto::Order outgoing_;
  std::optional<CoordinatorRoom> write_room_;
  std::atomic<bool> is_broken_ = false;
  CoordinatorRoom break_room_;
};

// As gRPC carries it, without a mark of origin.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_COORDINATOR_REACTORS_H_
