#include "algorithms/stage/round_peers.h"

#include <utility>

#include "core/base/status.h"
#include "core/pipeline/operation.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<RoundPeers>> RoundPeers::Create(Communicator& communicator,
                                                               PeerSource* source,
                                                               Matchmaker* matchmaker,
                                                               uint64_t global_interval) {
  std::unique_ptr<Scratch> scratch;
  if (source != nullptr) {
    ASSIGN_OR_RETURN(scratch, Scratch::Create(communicator, "peer agreement", 1));
    source->Prefetch(0);
  }
  return std::unique_ptr<RoundPeers>(
      new RoundPeers(communicator, source, matchmaker, global_interval, std::move(scratch)));
}

RoundPeers::RoundPeers(Communicator& communicator, PeerSource* source, Matchmaker* matchmaker,
                       uint64_t global_interval, std::unique_ptr<Scratch> scratch)
    : communicator_(communicator.id()),
      seat_{communicator.rank(), communicator.world_size()},
      source_(source),
      matchmaker_(matchmaker),
      global_interval_(global_interval),
      scratch_(std::move(scratch)) {}

void RoundPeers::Start(const BucketRun& run) {
  if (run.round() == round_) return;
  round_ = run.round();
  if (matchmaker_ != nullptr) {
    is_settled_ = false;
    matchmaker_->Ask(round_);
    return;
  }
  const uint64_t step = round_.value() - 1;
  peer_ = ShiftOnePeer(seat_, step);
  is_settled_ = source_ == nullptr;
  if (!is_settled_) BeginAgreement(step);
}

// Step s is that of round s + 1. Requires: some round has pairs.
uint64_t RoundPeers::NextStepAfter(uint64_t step) const {
  const bool is_global = global_interval_ > 0 && (step + 2) % global_interval_ == 0;
  return is_global ? step + 2 : step + 1;
}

void RoundPeers::BeginAgreement(uint64_t step) {
  chosen_ = source_->PeerAt(step);
  source_->Prefetch(NextStepAfter(step));
  everyone_knows() = chosen_.has_value() ? 1 : 0;
  agreement_.Clear();
  agreement_.Add(AllReduceOf(ReduceOp::kMin, DType::kUInt8, 1, scratch_->At(0), communicator_));
}

absl::StatusOr<bool> RoundPeers::Advance(BucketRun& run) {
  if (is_settled_) return true;
  if (matchmaker_ != nullptr) {
    ASSIGN_OR_RETURN(const std::optional<Rank> found, matchmaker_->Answer());
    is_settled_ = found.has_value();
    if (is_settled_) peer_ = *found;
    return is_settled_;
  }
  ASSIGN_OR_RETURN(is_settled_, agreement_.Advance(run));
  if (is_settled_ && everyone_knows() != 0) peer_ = *chosen_;
  return is_settled_;
}

}  // namespace pelton
