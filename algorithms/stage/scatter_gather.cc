#include "algorithms/stage/scatter_gather.h"

#include "core/base/status.h"
#include "core/pipeline/operation_batch.h"

namespace pelton {
namespace {

// Threads: as Stage. Owns: the operations of the round.
class ScatterGatherStage final : public Stage {
 public:
  ScatterGatherStage(ReduceOp op, const Communicator& ranks)
      : op_(op),
        communicator_(ranks.id()),
        rank_(static_cast<uint64_t>(ranks.rank().value())),
        rank_count_(static_cast<uint64_t>(ranks.world_size().value())) {}

  absl::string_view name() const override { return "scatter-gather"; }
  StageKind kind() const override { return StageKind::kExchange; }
  bool takes_device_memory() const override { return true; }

  // The gather is launched behind the scatter at once: the communicator keeps their order.
  absl::Status Start(BucketRun& run, StageState*) override {
    batch_.Clear();
    for (const Segment& segment : run.segments()) {
      const uint64_t count = segment.count / rank_count_;
      Location chunk = segment.location;
      chunk.offset += rank_ * count * SizeOf(run.layout().dtype);
      Operation scatter = OperationOn(run, OperationKind::kReduceScatter, count);
      scatter.set_source(segment.location);
      scatter.set_target(chunk);
      batch_.Add(scatter);
      Operation gather = OperationOn(run, OperationKind::kAllGather, count);
      gather.set_source(chunk);
      gather.set_target(segment.location);
      batch_.Add(gather);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override { return batch_.Advance(run); }
  bool has_launched_all() const override { return batch_.has_launched_all(); }

 private:
  Operation OperationOn(const BucketRun& run, OperationKind kind, uint64_t count) const {
    Operation operation;
    operation.kind = kind;
    operation.dtype = run.layout().dtype;
    operation.reduce_op = op_;
    operation.count = count;
    operation.communicator = communicator_;
    return operation;
  }

  const ReduceOp op_;
  const CommunicatorId communicator_;
  const uint64_t rank_;
  const uint64_t rank_count_;
  OperationBatch batch_;
};

}  // namespace

std::unique_ptr<Stage> MakeScatterGatherStage(ReduceOp op, const Communicator& ranks) {
  return std::make_unique<ScatterGatherStage>(op, ranks);
}

}  // namespace pelton
