#include "algorithms/stage/tier_stages.h"

#include "core/pipeline/operation_batch.h"

namespace pelton {
namespace {

// One operation per segment, in place, with the leader as its root.
// Threads: as Stage. Owns: the operations of the round.
class HostStage final : public Stage {
 public:
  HostStage(OperationKind kind, CommunicatorId host) : operation_kind_(kind), host_(host) {}

  absl::string_view name() const override {
    return reduces() ? "reduce to leader" : "broadcast from leader";
  }
  StageKind kind() const override { return reduces() ? StageKind::kExchange : StageKind::kMerge; }
  bool takes_device_memory() const override { return true; }

  absl::Status Start(BucketRun& run, StageState*) override {
    batch_.Clear();
    for (const Segment& segment : run.segments()) {
      Operation operation;
      operation.kind = operation_kind_;
      operation.dtype = run.layout().dtype;
      operation.reduce_op = ReduceOp::kSum;
      operation.peer = 0;
      operation.count = segment.count;
      operation.communicator = host_;
      operation.set_source(segment.location);
      operation.set_target(segment.location);
      batch_.Add(operation);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override { return batch_.Advance(run); }

 private:
  bool reduces() const { return operation_kind_ == OperationKind::kReduce; }

  const OperationKind operation_kind_;
  const CommunicatorId host_;
  OperationBatch batch_;
};

}  // namespace

std::unique_ptr<Stage> MakeReduceToLeaderStage(const Communicator& host) {
  return std::make_unique<HostStage>(OperationKind::kReduce, host.id());
}

std::unique_ptr<Stage> MakeBroadcastFromLeaderStage(const Communicator& host) {
  return std::make_unique<HostStage>(OperationKind::kBroadcast, host.id());
}

}  // namespace pelton
