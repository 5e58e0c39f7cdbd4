#include "algorithms/stage/deliver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "algorithms/codec/error_feedback.h"
#include "comm/reduction/linear_combination.h"
#include "core/pipeline/flat_state.h"

namespace pelton {
namespace {

// Threads: as Stage. Owns: names.
class DeliverStage final : public Stage {
 public:
  DeliverStage(absl::string_view name, std::vector<HeldBack> buffers)
      : name_(name), buffers_(std::move(buffers)) {}
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
  static void Deliver(const BucketRun& run, const StateBuffer& buffer) {
    const uint64_t size_bytes = buffer.count * SizeOf(buffer.dtype);
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    // Nearly always: a sum with zeros would turn -0 into 0, and cost a pass.
    if (std::all_of(buffer.data, buffer.data + size_bytes, is_zero)) return;
    const DType dtype = run.layout().dtype;
    const Term terms[] = {{run.flat(), 1, dtype}, {buffer.data, 1, buffer.dtype}};
    LinearCombination(terms, {run.flat(), dtype}, buffer.count);
    std::memset(buffer.data, 0, size_bytes);
  }

  const absl::string_view name_;
  const std::vector<HeldBack> buffers_;
};

}  // namespace

std::unique_ptr<Stage> MakeDeliverStage(absl::string_view name, std::vector<HeldBack> buffers) {
  return std::make_unique<DeliverStage>(name, std::move(buffers));
}

}  // namespace pelton
