#include "core/pipeline/pipeline.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {

absl::Status ExceptionIn(absl::string_view stage) {
  const auto thrown = [stage](absl::string_view what) {
    return absl::InternalError(absl::StrCat("exception in stage '", stage, "': ", what));
  };
  try {
    throw;  // the one that the caller's clause has caught
  } catch (const std::exception& error) {
    return thrown(error.what());
  } catch (...) {
    return thrown("of unknown type");
  }
}

Stream& BucketRun::stream() {
  if (DeviceQueue* const queue = device()) return queue->stream();
  return host_stream_;
}

absl::Status BucketRun::Begin() {
  DeviceQueue* const queue = device();
  return queue == nullptr ? absl::OkStatus() : queue->AwaitReady(layout_->id);
}

absl::StatusOr<Completion> BucketRun::Launch(Operation operation) {
  if (in_flight_.size() >= limits::kMaxOperationsInFlight) PruneFinished();
  operation.bucket = InMode(layout_->id, tracker_->mode());
  absl::StatusOr<Completion> completion = runner_->Launch(operation, stream());
  if (!completion.ok()) return completion;
  ++launch_count_;
  last_operation_ = operation;
  in_flight_.push_back(*completion);
  last_ = *completion;
  return completion;
}

OperationRunner::State BucketRun::Query(Completion completion) {
  OperationRunner::State state = runner_->Follow(completion, stream());
  if (state.done && absl::IsInvalidArgument(state.status)) disagreed_ = true;
  return state;
}

bool BucketRun::Drained() {
  PruneFinished();
  return in_flight_.empty();
}

std::optional<Completion> BucketRun::OnDevice() {
  if (device() == nullptr || last_.ticket == 0) return std::nullopt;
  // It may have failed since it came in the stream's order, by an abort on another thread. The
  // bucket counts as complete, so that what is said of the device is all that tells of that.
  const OperationRunner::State state = runner_->Query(last_);
  if (state.done && state.status.ok()) return std::nullopt;
  return last_;
}

void BucketRun::PruneFinished() {
  const auto finished = [this](Completion completion) {
    return runner_->Follow(completion, stream()).done;
  };
  in_flight_.erase(std::remove_if(in_flight_.begin(), in_flight_.end(), finished),
                   in_flight_.end());
}

void Stage::Prime(const BucketLayout&, const std::byte* flat, StageState& state) const {
  for (const StateBuffer& buffer : state.buffers()) {
    if (!buffer.begins_as_weights || buffer.count == 0) continue;
    const size_t element_bytes = SizeOf(buffer.dtype);
    std::memcpy(buffer.data, flat + buffer.begin_count * element_bytes,
                buffer.count * element_bytes);
  }
}

void FlatState::Add(StateBuffer buffer) {
  owned_.push_back(std::make_unique<std::byte[]>(buffer.count * SizeOf(buffer.dtype)));
  buffer.data = owned_.back().get();
  buffers_.push_back(buffer);
}

namespace {

absl::Status CheckDevice(const PipelineSpec& spec, const BucketLayout& layout) {
  if (layout.device.kind == DeviceKind::kHost) return absl::OkStatus();
  for (const std::unique_ptr<Stage>& stage : spec.stages) {
    if (stage->takes_device_memory()) continue;
    return absl::InvalidArgumentError(absl::StrCat("stage '", stage->name(), "' cannot work on ",
                                                   NameOf(layout.device.kind), " memory"));
  }
  return absl::OkStatus();
}

absl::Status CheckBucket(const PipelineSpec& spec, const BucketLayout& layout) {
  RETURN_IF_ERROR(CheckDevice(spec, layout));
  const auto& dtypes = spec.dtypes;
  if (!dtypes.empty() && std::find(dtypes.begin(), dtypes.end(), layout.dtype) == dtypes.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the stages cannot work on ", NameOf(layout.dtype)));
  }
  if (spec.alignment_count == 0 || layout.flat_count % spec.alignment_count != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the flat part's ", layout.flat_count,
                                                   " elements are no multiple of ",
                                                   spec.alignment_count));
  }
  if (!spec.allows_standalone && !layout.standalone.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the stages cannot work on standalone tensors, of which it has ",
                     layout.standalone.size(), "; the plan was made for stages that can"));
  }
  return absl::OkStatus();
}

absl::Status Check(const PipelineSpec& spec, const BucketLayout& layout) {
  if (spec.phase >= spec.period) {
    return absl::InvalidArgumentError(
        absl::StrCat("its phase is ", spec.phase, ", not below its period, ", spec.period));
  }
  if (spec.stages.empty()) return absl::InvalidArgumentError("it has no stages");
  return CheckBucket(spec, layout);
}

}  // namespace

absl::StatusOr<Pipeline> Pipeline::Build(PipelineSpec spec, const BucketLayout& layout) {
  RETURN_IF_ERROR(
      Annotate(Check(spec, layout), absl::StrCat("pipeline of bucket ", layout.id.value())));
  return Pipeline(std::move(spec), layout);
}

Pipeline::Pipeline(PipelineSpec spec, const BucketLayout& layout) : spec_(std::move(spec)) {
  for (const std::unique_ptr<Stage>& stage : spec_.stages) {
    states_.push_back(stage->MakeState(layout));
  }
}

void Pipeline::Enclose(std::unique_ptr<Stage> first, std::unique_ptr<Stage> last) {
  spec_.stages.insert(spec_.stages.begin(), std::move(first));
  states_.insert(states_.begin(), nullptr);
  spec_.stages.push_back(std::move(last));
  states_.push_back(nullptr);
}

void Pipeline::Prime(const BucketLayout& layout, const std::byte* flat) {
  for (size_t i = 0; i < stage_count(); ++i) {
    if (state(i) != nullptr) stage(i).Prime(layout, flat, *state(i));
  }
}

void Pipeline::KeepState() {
  size_t number = 0;
  for (const std::unique_ptr<StageState>& state : states_) {
    if (state == nullptr) continue;
    for (const StateBuffer& buffer : state->buffers()) {
      if (number == kept_.size()) kept_.emplace_back();
      kept_[number++].assign(buffer.data, buffer.data + buffer.count * SizeOf(buffer.dtype));
    }
  }
  is_kept_ = true;
}

void Pipeline::RestoreState() {
  if (!std::exchange(is_kept_, false)) return;
  size_t number = 0;
  for (const std::unique_ptr<StageState>& state : states_) {
    if (state == nullptr) continue;
    for (const StateBuffer& buffer : state->buffers()) {
      std::copy(kept_[number].begin(), kept_[number].end(), buffer.data);
      ++number;
    }
  }
}

void Pipeline::KeepUnused(const BucketRun& run) {
  unused_.clear();
  const auto is_null = [](const std::unique_ptr<StageState>& state) { return state == nullptr; };
  if (!spec_.finds_unused || std::all_of(states_.begin(), states_.end(), is_null)) return;
  run.plan().ForEachFlatSlot(run.layout(), [&](SlotId slot, uint64_t begin, uint64_t end) {
    if (!run.UsedHere(slot)) KeepUnused(slot, begin, end);
  });
}

void Pipeline::KeepUnused(SlotId slot, uint64_t slot_begin, uint64_t slot_end) {
  for (const std::unique_ptr<StageState>& state : states_) {
    if (state == nullptr) continue;
    for (const StateBuffer& buffer : state->buffers()) {
      const uint64_t begin = std::max(slot_begin, buffer.begin_count);
      const uint64_t end = std::min(slot_end, buffer.begin_count + buffer.count);
      if (begin >= end) continue;
      std::byte* const data = buffer.data + (begin - buffer.begin_count) * SizeOf(buffer.dtype);
      unused_.push_back({slot, data, {data, data + (end - begin) * SizeOf(buffer.dtype)}});
    }
  }
}

void Pipeline::PutBackUnused(absl::FunctionRef<bool(SlotId)> is_used_elsewhere) {
  for (const UnusedState& state : unused_) {
    if (is_used_elsewhere(state.slot)) continue;
    std::copy(state.copy.begin(), state.copy.end(), state.data);
  }
  unused_.clear();
}

}  // namespace pelton
