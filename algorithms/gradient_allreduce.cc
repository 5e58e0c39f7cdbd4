// Gradient allreduce: after each backward pass every rank holds the average (or sum) of all ranks'
// gradients, so that all of them take the same optimizer step.
//
// Steps: one allreduce per segment of a bucket, started as soon as the bucket is ready; or a
// reduce_scatter and an allgather of the bucket (MakeScatterGatherStage below).
// Bytes: for a bucket of B bytes on n ranks those of the communicator's allreduce of B bytes, at
// best 2 * B * (n - 1) / n from each rank; with scatter_gather exactly that.
// Result: bitwise equal on all ranks (SUM-1a), and to the sum in rank order where the
// communicator's schedule promises that (SUM-1b).
#include <memory>

#include "algorithms/algorithm.h"
#include "comm/communicator.h"
#include "core/base/status.h"
#include "core/memory/dtype.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Reduces a bucket's flat part with `op` so that each rank is left with its chunk, then
// gathers the chunks; in place. The flat part's count must be a multiple of the number of ranks.
// Steps: a reduce_scatter and an allgather. With Bagua's all-to-all and a reduction of the own
// chunk in place of the first, each rank would send as much and, where the reduce_scatter adds in
// rank order, hold the same bits (SUM-1b); it would need a second buffer.
// Bytes: for a flat part of B bytes on n ranks a rank sends 2 * B * (n - 1) / n.
// Source: Bagua's `scattergather`.
std::unique_ptr<Stage> MakeScatterGatherStage(ReduceOp op, const Communicator& ranks) {
  const auto rank = static_cast<uint64_t>(ranks.rank().value());
  const auto rank_count = static_cast<uint64_t>(ranks.world_size().value());
  Operation scatter;
  scatter.kind = OperationKind::kReduceScatter;
  scatter.reduce_op = op;
  scatter.communicator = ranks.id();
  // The gather is launched behind the scatter at once: the communicator keeps their order.
  const auto fill = [=](const BucketRun& run, OperationBatch& batch) mutable {
    scatter.dtype = run.layout().dtype;
    for (const Segment& segment : run.segments()) {
      scatter.count = segment.count / rank_count;
      Location chunk = segment.location;
      chunk.offset += rank * scatter.count * SizeOf(scatter.dtype);
      scatter.set_source(segment.location);
      scatter.set_target(chunk);
      batch.Add(scatter);
      Operation gather = scatter;
      gather.kind = OperationKind::kAllGather;
      gather.set_source(chunk);
      gather.set_target(segment.location);
      batch.Add(gather);
    }
  };
  return MakeOperationStage("scatter-gather", fill);
}

constexpr std::array kDTypes = {DType::kFloat32,  DType::kFloat64,   DType::kFloat16,
                                DType::kBFloat16, DType::kInt32,     DType::kInt64,
                                DType::kUInt8,    DType::kComplex64, DType::kComplex128};

// Threads: as Algorithm. Owns: its options.
class GradientAllReduce final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Bool("average", &average_,
               "true: divide by the number of ranks; false: sum; integers are always summed");
    table.Bool("hierarchical", &hierarchical_,
               "changes nothing: several hosts compose shared memory and the wire in either case");
    table.Bool("scatter_gather", &scatter_gather_,
               "true: a reduce_scatter, then an allgather; false: an allreduce");
    table.Refuse("codec", "the algorithm bytegrad is this one with a codec");
  }
  std::string BytesSent() const override { return "those of an allreduce of B bytes"; }

  PlanConstraints Constraints() const override {
    return {.allows_standalone = !scatter_gather_};  // they are not padded to equal chunks
  }

  bool TakesDeviceMemory() const override { return true; }

  std::optional<ReduceOp> EqualsReduction(DType dtype) const override { return ReductionOf(dtype); }

  bool Takes(const TensorSpec& tensor) const override {
    return std::find(kDTypes.begin(), kDTypes.end(), tensor.dtype) != kDTypes.end();
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    const ReduceOp op = ReductionOf(layout.dtype);
    PipelineSpec spec;
    if (scatter_gather_) {
      spec.stages.push_back(MakeScatterGatherStage(op, *tiers.all));
      spec.alignment_count = static_cast<uint64_t>(tiers.all->world_size().value());
    } else {
      spec.stages.push_back(MakeAllReduceStage(op));
    }
    return spec;
  }

 private:
  ReduceOp ReductionOf(DType dtype) const {
    return average_ && IsFloatingPoint(dtype) ? ReduceOp::kAvg : ReduceOp::kSum;
  }

  bool average_ = true;
  bool hierarchical_ = false;
  bool scatter_gather_ = false;
};

REGISTER_ALGORITHM(gradient_allreduce, "average of all ranks' gradients, bucket by bucket",
                   GradientAllReduce);

}  // namespace
}  // namespace pelton
