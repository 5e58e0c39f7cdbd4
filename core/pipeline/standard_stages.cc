#include "core/pipeline/standard_stages.h"

#include "core/pipeline/operation_batch.h"

namespace pelton {
namespace {

// Threads: as Stage. Owns: the operations of the round.
class AllReduceStage final : public Stage {
 public:
  explicit AllReduceStage(ReduceOp op) : op_(op) {}
  absl::string_view name() const override { return "allreduce"; }
  StageKind kind() const override { return StageKind::kExchange; }
  bool takes_device_memory() const override { return true; }

  absl::Status Start(BucketRun& run, StageState*) override {
    batch_.Clear();
    for (const Segment& segment : run.segments()) {
      Operation operation;
      operation.kind = OperationKind::kAllReduce;
      operation.dtype = run.layout().dtype;
      operation.reduce_op = op_;
      operation.count = segment.count;
      operation.set_source(segment.location);
      operation.set_target(segment.location);
      batch_.Add(operation);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override { return batch_.Advance(run); }
  bool has_launched_all() const override { return batch_.has_launched_all(); }

 private:
  const ReduceOp op_;
  OperationBatch batch_;
};

}  // namespace

std::unique_ptr<Stage> MakeAllReduceStage(ReduceOp op) {
  return std::make_unique<AllReduceStage>(op);
}

}  // namespace pelton
