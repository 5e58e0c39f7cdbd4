#include "algorithms/stage/tier_stages.h"

#include "comm/reduction/linear_combination.h"
#include "core/pipeline/operation_batch.h"

namespace pelton {
namespace {

// One operation per segment, in place, with the leader as its root.
// Threads: as Stage. Owns: the operations of the round.
class HostStage final : public Stage {
 public:
  HostStage(OperationKind kind, CommunicatorId host, ReduceOp op)
      : operation_kind_(kind), host_(host), op_(op) {}

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
      operation.reduce_op = op_;
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
  const ReduceOp op_;
  OperationBatch batch_;
};

// Threads: as Stage. Owns: nothing.
class ScaleStage final : public Stage {
 public:
  explicit ScaleStage(double factor) : factor_(factor) {}

  absl::string_view name() const override { return "scale"; }
  StageKind kind() const override { return StageKind::kMerge; }

  absl::Status Start(BucketRun& run, StageState*) override {
    const DType dtype = run.layout().dtype;
    const Term term = {run.flat(), factor_, dtype};
    LinearCombination({&term, 1}, {run.flat(), dtype}, run.layout().content_count);
    return absl::OkStatus();
  }

 private:
  const double factor_;
};

}  // namespace

std::unique_ptr<Stage> MakeReduceToLeaderStage(const Communicator& host, ReduceOp op) {
  return std::make_unique<HostStage>(OperationKind::kReduce, host.id(), op);
}

std::unique_ptr<Stage> MakeScaleStage(double factor) {
  return std::make_unique<ScaleStage>(factor);
}

std::unique_ptr<Stage> MakeBroadcastFromLeaderStage(const Communicator& host) {
  return std::make_unique<HostStage>(OperationKind::kBroadcast, host.id(), ReduceOp::kSum);
}

}  // namespace pelton
