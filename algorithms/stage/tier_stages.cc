#include "algorithms/stage/tier_stages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "algorithms/codec/error_feedback.h"
#include "comm/reduction/linear_combination.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Threads: as Stage. Owns: names.
class DeliverStage final : public Stage {
 public:
  DeliverStage(absl::string_view name, std::vector<HeldBack> buffers, double factor)
      : name_(name), buffers_(std::move(buffers)), factor_(factor) {}
  absl::string_view name() const override { return name_; }
  StageKind kind() const override { return StageKind::kPrepare; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    auto state = std::make_unique<FlatState>();
    for (const HeldBack& buffer : buffers_) {
      state->Add({.name = buffer.name,
                  .dtype = FeedbackDType(layout.dtype),
                  .scope = buffer.scope,
                  .count = layout.content_count});
    }
    return state;
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    for (const StateBuffer& buffer : state->buffers()) {
      if (buffer.scope != StateScope::kCommon) Deliver(run, buffer);
    }
    return absl::OkStatus();
  }

 private:
  void Deliver(const BucketRun& run, const StateBuffer& buffer) const {
    const uint64_t size_bytes = buffer.count * SizeOf(buffer.dtype);
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    // Nearly always: a sum with zeros would turn -0 into 0, and cost a pass.
    if (std::all_of(buffer.data, buffer.data + size_bytes, is_zero)) return;
    const DType dtype = run.layout().dtype;
    const Term terms[] = {{run.flat(), 1, dtype}, {buffer.data, factor_, buffer.dtype}};
    LinearCombination(terms, {run.flat(), dtype}, buffer.count);
    std::memset(buffer.data, 0, size_bytes);
  }

  const absl::string_view name_;
  const std::vector<HeldBack> buffers_;
  const double factor_;
};

}  // namespace

std::unique_ptr<Stage> MakeDeliverStage(absl::string_view name, std::vector<HeldBack> buffers,
                                        double factor) {
  return std::make_unique<DeliverStage>(name, std::move(buffers), factor);
}

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
