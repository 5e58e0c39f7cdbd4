// A unary call whose reply comes later.
#ifndef PELTON_COMM_CONTROL_PARKED_CALL_H_
#define PELTON_COMM_CONTROL_PARKED_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>
#include <utility>

#include "comm/control/coordinator_messages.h"

namespace pelton {

class CoordinatorShell;

// The status as gRPC carries it, marked as the coordinator's own.
grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext* context);

// Threads: Finish by the one thread that took the call out of the shell's table. Owns: itself,
// until OnDone.
class ParkedCall : public grpc::ServerUnaryReactor {
 public:
  ParkedCall(CoordinatorShell* shell, grpc::CallbackServerContext* context, std::string job)
      : job_(std::move(job)), shell_(shell), context_(context) {}

  // Sends the reply.
  void Answer(Reply reply);
  const std::string& job() const { return job_; }

  void OnCancel() override;
  void OnDone() override { delete this; }

  uint64_t id = 0;  // given by the shell

 protected:
  virtual void Fill(Reply reply) = 0;

 private:
  const std::string job_;
  CoordinatorShell* const shell_;
  grpc::CallbackServerContext* const context_;
};

// `fill` writes a successful reply into the response. Threads: as ParkedCall. Owns: `fill`.
template <typename Response>
class ParkedCallOf final : public ParkedCall {
 public:
  using Filler = void (*)(Reply reply, Response* response);
  ParkedCallOf(CoordinatorShell* shell, grpc::CallbackServerContext* context, std::string job,
               Response* response, Filler fill)
      : ParkedCall(shell, context, std::move(job)), response_(response), fill_(fill) {}

 private:
  void Fill(Reply reply) override { fill_(std::move(reply), response_); }

  Response* const response_;
  const Filler fill_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_PARKED_CALL_H_
