#include "core/pipeline/standard_stages.h"

#include <cstring>

#include "core/base/status.h"

namespace pelton {
namespace {

template <typename T>
void Fill(const BucketRun& run, std::byte* tail, T one) {
  for (SlotId slot : run.layout().slots) {
    const T value = run.UsedHere(slot) ? one : T{0};
    std::memcpy(tail, &value, sizeof(T));
    tail += sizeof(T);
  }
}

// Threads: as Stage. Owns: nothing.
class UsedTailStage final : public Stage {
 public:
  absl::string_view name() const override { return "used tail"; }
  StageKind kind() const override { return StageKind::kPrepare; }

  absl::Status Start(BucketRun& run, StageState*) override {
    std::byte* const tail = run.storage().TailOf(run.layout().id);
    if (tail == nullptr) return absl::OkStatus();
    switch (run.layout().dtype) {
      case DType::kFloat32:
        Fill<float>(run, tail, 1);
        break;
      case DType::kFloat64:
        Fill<double>(run, tail, 1);
        break;
      case DType::kFloat16:
        Fill<uint16_t>(run, tail, 0x3C00);  // 1.0
        break;
      case DType::kBFloat16:
        Fill<uint16_t>(run, tail, 0x3F80);  // 1.0
        break;
      case DType::kUInt8:
      case DType::kInt8:
        Fill<uint8_t>(run, tail, 1);
        break;
      case DType::kInt16:
        Fill<uint16_t>(run, tail, 1);
        break;
      case DType::kInt32:
        Fill<uint32_t>(run, tail, 1);
        break;
      case DType::kInt64:
        Fill<uint64_t>(run, tail, 1);
        break;
      default:
        return absl::InternalError("a used tail of a dtype that cannot carry one");
    }
    return absl::OkStatus();
  }
};

// Threads: as Stage. Owns: the segments and completions of the round.
class AllReduceStage final : public Stage {
 public:
  explicit AllReduceStage(ReduceOp op) : op_(op) {}
  absl::string_view name() const override { return "allreduce"; }
  StageKind kind() const override { return StageKind::kExchange; }

  absl::Status Start(BucketRun& run, StageState*) override {
    segments_ = run.segments();
    completions_.clear();
    finished_ = 0;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    RETURN_IF_ERROR(LaunchMore(run));
    while (finished_ < completions_.size()) {
      const OperationRunner::State state = run.Query(completions_[finished_]);
      if (!state.done) return false;
      RETURN_IF_ERROR(state.status);
      ++finished_;
    }
    return finished_ == segments_.size();
  }

 private:
  absl::Status LaunchMore(BucketRun& run) {
    // The runner answers only for its last launches: no more than that may be open.
    while (completions_.size() < segments_.size() &&
           completions_.size() - finished_ < limits::kMaxOperationsInFlight) {
      const Segment& segment = segments_[completions_.size()];
      Operation operation;
      operation.kind = OperationKind::kAllReduce;
      operation.dtype = run.layout().dtype;
      operation.reduce_op = op_;
      operation.count = segment.count;
      operation.set_source(segment.location);
      operation.set_target(segment.location);
      const absl::StatusOr<Completion> completion = run.Launch(operation);
      if (absl::IsResourceExhausted(completion.status())) break;  // tried again after progress
      RETURN_IF_ERROR(completion.status());
      completions_.push_back(*completion);
    }
    return absl::OkStatus();
  }

  const ReduceOp op_;
  SegmentList segments_;
  absl::InlinedVector<Completion, 4> completions_;
  size_t finished_ = 0;
};

}  // namespace

std::unique_ptr<Stage> MakeUsedTailStage() { return std::make_unique<UsedTailStage>(); }

std::unique_ptr<Stage> MakeAllReduceStage(ReduceOp op) {
  return std::make_unique<AllReduceStage>(op);
}

}  // namespace pelton
