// A call with one request whose reply may come later.
#ifndef PELTON_COMM_CONTROL_PARKED_CALL_H_
#define PELTON_COMM_CONTROL_PARKED_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "comm/control/coordinator_messages.h"

namespace pelton {

class CoordinatorShell;

// The status as gRPC carries it, marked as the coordinator's own.
grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext* context);

// Threads: Answer by the one thread that took the call out of the shell's table; is_cancelled by
// any. Owns: itself, until gRPC is done with it.
class ParkedCall {
 public:
  ParkedCall(CoordinatorShell* shell, grpc::CallbackServerContext* context)
      : shell_(shell), context_(context) {}
  virtual ~ParkedCall() = default;

  // Sends the reply.
  void Answer(Reply reply);
  // Sends a status alone, that of a call which was never parked.
  void AnswerNow(const absl::Status& status) { End(ToGrpc(status, context_)); }
  // Of the caller; before it is parked.
  void set_job(std::string job) { job_ = std::move(job); }
  const std::string& job() const { return job_; }
  bool is_cancelled() const { return is_cancelled_.load(); }

  uint64_t id = 0;  // given by the shell

 protected:
  // That nobody waits for the reply any more. It may be parked, or not yet.
  void Cancel();
  virtual void Fill(Reply reply) = 0;
  virtual void End(const grpc::Status& status) = 0;

 private:
  CoordinatorShell* const shell_;
  grpc::CallbackServerContext* const context_;
  std::string job_;
  std::atomic<bool> is_cancelled_ = false;
};

// A unary call, served as one whose client streams: so gRPC asks for the request when it is told
// to, and not before anybody has looked who calls. Threads: as ParkedCall. Owns: the request.
template <typename Request, typename Response>
class CallOf final : public grpc::ServerReadReactor<Request>, public ParkedCall {
 public:
  using Begin = std::function<void(CallOf& call)>;
  using Filler = void (*)(Reply reply, Response* response);

  // `begin` answers the call or parks it, once its request is there; `fill` writes a successful
  // reply of a parked one into the response.
  CallOf(CoordinatorShell* shell, grpc::CallbackServerContext* context, Response* response,
         Begin begin)
      : ParkedCall(shell, context), response_(response), begin_(std::move(begin)) {}

  void Refuse(const grpc::Status& status) { this->Finish(status); }
  void Read() { this->StartRead(&request_); }
  void set_filler(Filler fill) { fill_ = fill; }
  const Request& request() const { return request_; }

  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish({grpc::StatusCode::INVALID_ARGUMENT, "a call without a request"});
    begin_(*this);
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override { delete this; }

 private:
  void Fill(Reply reply) override { fill_(std::move(reply), response_); }
  void End(const grpc::Status& status) override { this->Finish(status); }

  Request request_;
  Response* const response_;
  const Begin begin_;
  Filler fill_ = nullptr;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_PARKED_CALL_H_
