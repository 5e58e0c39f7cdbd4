#include "comm/hierarchy/staged_run.h"

#include <cstring>
#include <utility>

#include "comm/hierarchy/wires.h"
#include "core/base/status.h"
#include "core/memory/device_queue.h"

namespace pelton::hierarchy {
namespace {

// Steps that a host has in flight at most: leaves room for the messages on the same wires.
constexpr size_t kMaxSteps = 64;

}  // namespace

StagedRun::StagedRun(Wires& wires, const Layout& layout, int32_t rank)
    : wires_(wires),
      layout_(layout),
      rank_(rank),
      messages_{ProgramRun(wires), ProgramRun(wires)} {}

StagedRun::~StagedRun() {
  if (scratch_ != nullptr) wires_.Deregister(scratch_->id());
}

absl::Status StagedRun::ReserveScratch(uint64_t size_bytes) {
  if (size_bytes == 0 || (scratch_ != nullptr && scratch_->size_bytes() >= size_bytes)) {
    return absl::OkStatus();
  }
  if (scratch_ != nullptr) wires_.Deregister(scratch_->id());
  scratch_.reset();
  ASSIGN_OR_RETURN(scratch_, Region::Create(size_bytes, "pelton-hierarchy"));
  return wires_.Register(*scratch_);
}

absl::Status StagedRun::Start(StagedCollective collective, const Operation& operation,
                              const OperationMemory& memory) {
  collective_ = std::move(collective);
  operation_ = operation;
  memory_ = memory;
  const size_t count = collective_.stages.size();
  batches_.clear();
  for (size_t stage = 0; stage <= count; ++stage) {
    if (stage < count) batches_.push_back({stage, false});
    if (stage > 0) batches_.push_back({stage - 1, true});
  }
  progress_.assign(count, {});
  for (size_t i = 0; i < count; ++i) progress_[i].up_left = collective_.stages[i].up.size();
  next_batch_ = next_step_ = oldest_messages_ = 0;
  in_flight_.clear();
  return ReserveScratch(collective_.scratch_count * SizeOf(operation.dtype));
}

absl::StatusOr<bool> StagedRun::Advance() {
  moved_ = false;
  RETURN_IF_ERROR(PollSteps());
  RETURN_IF_ERROR(AdvanceMessages());
  RETURN_IF_ERROR(LaunchSteps());
  return next_batch_ == batches_.size() && in_flight_.empty() &&
         oldest_messages_ == progress_.size();
}

absl::Status StagedRun::PollSteps() {
  for (size_t i = 0; i < in_flight_.size();) {
    const OperationRunner::State state = wires_.Query(in_flight_[i].completion);
    RETURN_IF_ERROR(state.status);
    if (!state.done) {
      ++i;
      continue;
    }
    if (in_flight_[i].is_up) --progress_[in_flight_[i].stage].up_left;
    in_flight_.erase(in_flight_.begin() + static_cast<ptrdiff_t>(i));
    moved_ = true;
  }
  return absl::OkStatus();
}

absl::Status StagedRun::AdvanceMessages() {
  const size_t end = std::min(oldest_messages_ + messages_.size(), progress_.size());
  for (size_t stage = oldest_messages_; stage < end; ++stage) {
    Progress& progress = progress_[stage];
    if (progress.messages_done) continue;
    if (!progress.messages_began) {
      // Its batch has been launched, if it has steps; a stage without any may begin early.
      if (progress.up_left > 0) continue;
      RETURN_IF_ERROR(StartMessages(stage));
    }
    ProgramRun& run = messages_[stage % messages_.size()];
    ASSIGN_OR_RETURN(progress.messages_done, run.Advance());
    moved_ = moved_ || run.moved() || progress.messages_done;
  }
  while (oldest_messages_ < progress_.size() && progress_[oldest_messages_].messages_done) {
    ++oldest_messages_;
  }
  return absl::OkStatus();
}

absl::Status StagedRun::StartMessages(size_t index) {
  const Stage& stage = collective_.stages[index];
  progress_[index].messages_began = true;
  ProgramBinding binding;
  binding.source = AddressOf(stage.source);
  binding.target = AddressOf(stage.target);
  binding.dtype = operation_.dtype;
  binding.reduce_op = stage.reduce_op;
  binding.divisor = stage.divisor;
  binding.peers = stage.peers;
  binding.tag = kStageTags[index % messages_.size()];
  binding.kind = operation_.kind;
  binding.bucket = operation_.bucket;
  return messages_[index % messages_.size()].Start(stage.messages, binding);
}

const std::vector<InsideStep>& StagedRun::StepsOf(const Batch& batch) const {
  const Stage& stage = collective_.stages[batch.stage];
  return batch.is_down ? stage.down : stage.up;
}

absl::Status StagedRun::LaunchSteps() {
  while (next_batch_ < batches_.size()) {
    const Batch& batch = batches_[next_batch_];
    if (batch.is_down && !progress_[batch.stage].messages_done) return absl::OkStatus();
    ASSIGN_OR_RETURN(const bool launched, LaunchBatch(batch));
    if (!launched) return absl::OkStatus();
    ++next_batch_;
    next_step_ = 0;
    moved_ = true;
  }
  return absl::OkStatus();
}

// False when there is no room for all of it now.
absl::StatusOr<bool> StagedRun::LaunchBatch(const Batch& batch) {
  if (!batch.is_down && next_step_ == 0) CopyOwnPart(collective_.stages[batch.stage]);
  const std::vector<InsideStep>& steps = StepsOf(batch);
  while (next_step_ < steps.size()) {
    if (in_flight_.size() >= kMaxSteps) return false;
    const absl::Status launched = LaunchStep(steps[next_step_], {{}, batch.stage, !batch.is_down});
    if (absl::IsResourceExhausted(launched)) return false;
    RETURN_IF_ERROR(launched);
    ++next_step_;
  }
  return true;
}

absl::Status StagedRun::LaunchStep(const InsideStep& step, Flight flight) {
  Operation operation;
  operation.kind = step.kind;
  operation.dtype = operation_.dtype;
  operation.reduce_op = step.reduce_op;
  operation.peer = step.peer;
  if (IsPointToPoint(step.kind)) {
    operation.peer = layout_.RanksOn(layout_.HostOf(rank_))[step.peer];
    operation.tag = kStepTag;
  }
  operation.count = step.count;
  operation.bucket = operation_.bucket;
  operation.set_source(LocationOf(step.source));
  operation.set_target(LocationOf(step.target));
  HostStream stream;
  ASSIGN_OR_RETURN(flight.completion, wires_.Launch(operation, stream));
  in_flight_.push_back(flight);
  return absl::OkStatus();
}

void StagedRun::CopyOwnPart(const Stage& stage) const {
  if (stage.copied_from.count == 0) return;
  std::byte* const from = AddressOf(stage.copied_from);
  std::byte* const to = AddressOf(stage.copied_to);
  if (from != to) std::memcpy(to, from, stage.copied_from.count * SizeOf(operation_.dtype));
}

Location StagedRun::LocationOf(const Piece& piece) const {
  Location base = piece.buffer == Buffer::kSource ? operation_.source() : operation_.target();
  if (piece.buffer == Buffer::kScratch) base = {scratch_ ? scratch_->id() : kPrivateRegion, 0};
  return {base.region, base.offset + piece.offset * SizeOf(operation_.dtype)};
}

std::byte* StagedRun::AddressOf(const Piece& piece) const {
  std::byte* base = piece.buffer == Buffer::kSource ? memory_.source : memory_.target;
  if (piece.buffer == Buffer::kScratch) base = scratch_ ? scratch_->data() : nullptr;
  return base == nullptr ? nullptr : base + piece.offset * SizeOf(operation_.dtype);
}

}  // namespace pelton::hierarchy
