// A transport that wraps another one and injects faults, so that failure is a unit test.
#ifndef PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/fault/fault_plan.h"
#include "comm/transport/transport.h"
#include "core/base/sync.h"

namespace pelton {

// Threads: as Communicator. Owns: the communicator it wraps.
class FaultCommunicator final : public Communicator {
 public:
  FaultCommunicator(std::unique_ptr<Communicator> wrapped, const FaultPlan& plan, uint64_t stream)
      : wrapped_(std::move(wrapped)), dice_(plan, stream) {}

  Rank rank() const override { return wrapped_->rank(); }
  WorldSize world_size() const override { return wrapped_->world_size(); }
  CommunicatorId id() const override { return wrapped_->id(); }
  absl::Status Register(const Region& region) override { return wrapped_->Register(region); }
  void Deregister(RegionId region) override { wrapped_->Deregister(region); }

  // Errors: also those of the plan. A broken connection aborts the wrapped communicator, so that
  // the peers notice as they would.
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  State Query(Completion completion) override { return wrapped_->Query(completion); }
  void Park(absl::Time until) override { wrapped_->Park(until); }
  void Wake() override;
  void Abort(const absl::Status& reason) override { wrapped_->Abort(reason); }
  std::vector<Rank> Missing() const override { return wrapped_->Missing(); }

 private:
  const std::unique_ptr<Communicator> wrapped_;
  Mutex mutex_;
  FaultDice dice_ ABSL_GUARDED_BY(mutex_);
};

// Threads: as Transport. Owns: the transport it wraps.
class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> wrapped, const FaultPlan& plan)
      : wrapped_(std::move(wrapped)), plan_(plan) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override;
  void Abort(const absl::Status& reason) override { wrapped_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> wrapped_;
  const FaultPlan plan_;
};

// `wrapped` with the same faults on top.
std::unique_ptr<Communicator> WithFaults(std::unique_ptr<Communicator> wrapped,
                                         const FaultPlan& plan);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_
