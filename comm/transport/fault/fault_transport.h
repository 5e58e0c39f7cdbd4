// A transport that wraps another one and injects faults, so that failure is a unit test.
#ifndef PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/forwarding_communicator.h"
#include "comm/transport/fault/fault_plan.h"
#include "comm/transport/transport.h"

namespace pelton {

// Threads: as Communicator. Owns: the communicator it wraps.
class FaultCommunicator final : public ForwardingCommunicator {
 public:
  FaultCommunicator(std::unique_ptr<Communicator> wrapped, const FaultPlan& plan, uint64_t stream)
      : ForwardingCommunicator(std::move(wrapped)), dice_(plan, stream) {}

  // Errors: also those of the plan. A broken connection aborts the wrapped communicator, so that
  // the peers notice as they would.
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  void Wake() override;

 private:
  FaultDice dice_;
};

// Threads: as Transport. Owns: the transport it wraps.
class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> wrapped, const FaultPlan& plan)
      : wrapped_(std::move(wrapped)), plan_(plan) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override;
  void Abort(const absl::Status& reason) override { wrapped_->Abort(reason); }
  void SayGoodbye() override { wrapped_->SayGoodbye(); }

 private:
  const std::unique_ptr<Transport> wrapped_;
  const FaultPlan plan_;
};

// `wrapped` with the same faults on top.
std::unique_ptr<Communicator> WithFaults(std::unique_ptr<Communicator> wrapped,
                                         const FaultPlan& plan);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_
