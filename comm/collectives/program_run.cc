#include "comm/collectives/program_run.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/reduction/linear_combination.h"
#include "comm/reduction/reduction.h"
#include "comm/transport/operation_check.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"

namespace pelton {
namespace {

// Of all sources of one reduction between two looks at the transfers.
constexpr uint64_t kComputeBytes = uint64_t{512} << 10;
constexpr uint64_t kMinBlockBytes = uint64_t{16} << 10;

}  // namespace

absl::Status ProgramRun::Start(const Program& program, const ProgramBinding& binding) {
  PELTON_CHECK(program.strands.size() <= static_cast<size_t>(kMaxProgramStrands));
  RETURN_IF_ERROR(status_);
  const uint64_t scratch_bytes = program.scratch_count * SizeOf(binding.dtype);
  if (scratch_bytes > scratch_bytes_) {
    scratch_.reset();
    scratch_bytes_ = 0;
    // Not zeroed: every byte is received or written before it is read.
    scratch_.reset(new (std::nothrow) std::byte[scratch_bytes]);
    if (scratch_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", scratch_bytes, " bytes of memory for a collective"));
    }
    scratch_bytes_ = scratch_bytes;
  }
  program_ = &program;
  binding_ = binding;
  if (strands_.size() < program.strands.size()) strands_.resize(program.strands.size());
  waves_ = 0;
  for (size_t i = 0; i < program.strands.size(); ++i) {
    PELTON_CHECK(strands_[i].in_flight.empty());
    strands_[i].wave = 0;
    waves_ = std::max(waves_, program.strands[i].size());
  }
  next_wave_ = next_strand_ = 0;
  difference_ = absl::OkStatus();
  return absl::OkStatus();
}

absl::StatusOr<bool> ProgramRun::Advance() {
  moved_ = false;
  RETURN_IF_ERROR(status_);
  for (size_t i = 0; i < program_->strands.size(); ++i) {
    status_ = Poll(strands_[i]);
    RETURN_IF_ERROR(status_);
    Compute(i);
  }
  status_ = Issue();
  RETURN_IF_ERROR(status_);
  if (!is_done()) return false;
  RETURN_IF_ERROR(difference_);
  return true;
}

bool ProgramRun::is_done() const {
  for (size_t i = 0; i < program_->strands.size(); ++i) {
    if (strands_[i].wave < program_->strands[i].size()) return false;
  }
  return true;
}

// Where only one end sends weights, that end's message of them has no other.
bool ProgramRun::Outlives(const absl::Status& status) const {
  if (status.ok()) return true;
  return binding_.outlives_differences && absl::IsInvalidArgument(status) &&
         !(binding_.sends_weights && absl::StrContains(status.message(), kOneEndSendsWeights));
}

absl::Status ProgramRun::Poll(Strand& strand) {
  for (size_t i = 0; i < strand.in_flight.size();) {
    const OperationRunner::State state = runner_.Query(strand.in_flight[i].completion);
    if (!Outlives(state.status)) return state.status;
    difference_.Update(state.status);
    if (!state.done) {
      ++i;
      continue;
    }
    strand.in_flight[i] = strand.in_flight.back();
    strand.in_flight.pop_back();
    --in_flight_count_;
    moved_ = true;
  }
  return absl::OkStatus();
}

// Local steps of the strand's wave, if its transfers are done; the wave after them is next.
void ProgramRun::Compute(size_t index) {
  Strand& strand = strands_[index];
  if (!strand.is_open || !strand.in_flight.empty()) return;
  const std::vector<LocalStep>& steps = program_->strands[index][strand.wave].local;
  if (!difference_.ok()) strand.local = steps.size();  // not all that they need is here
  if (strand.local < steps.size()) {
    ComputeStep(steps[strand.local], strand);
    moved_ = true;
  }
  if (strand.local < steps.size()) return;
  ++strand.wave;
  strand.is_open = false;
  strand.launched = 0;
  strand.local = 0;
}

std::byte* ProgramRun::At(const Piece& piece, uint64_t skip_count) const {
  std::byte* const bases[] = {binding_.source, binding_.target, scratch_.get(),
                              reinterpret_cast<std::byte*>(binding_.factors.data())};
  return bases[static_cast<size_t>(piece.buffer)] +
         (piece.offset + skip_count) * SizeOf(TypeOf(piece.buffer));
}

void ProgramRun::ComputeStep(const LocalStep& step, Strand& strand) {
  const uint64_t size = SizeOf(TypeOf(step.target.buffer));
  const uint64_t block_bytes = std::max(kMinBlockBytes, kComputeBytes / step.sources.size());
  const uint64_t count = std::min(step.target.count - strand.local_count, block_bytes / size);
  ComputeBlock(step, strand.local_count, count);
  strand.local_count += count;
  if (strand.local_count < step.target.count) return;
  strand.local_count = 0;
  ++strand.local;
}

void ProgramRun::ComputeBlock(const LocalStep& step, uint64_t begin, uint64_t count) {
  std::byte* const target = At(step.target, begin);
  sources_.clear();
  for (const Piece& source : step.sources) sources_.push_back(At(source, begin));
  const bool is_mean = binding_.reduce_op == ReduceOp::kAvg;
  if (step.kind == LocalStep::Kind::kCopy) {
    if (target != sources_[0]) {
      std::memcpy(target, sources_[0], count * SizeOf(TypeOf(step.target.buffer)));
    }
  } else if (step.kind == LocalStep::Kind::kScale) {
    const std::byte* const both[] = {target, sources_[0]};
    Reduce(both, {&target, 1}, count, DType::kFloat64, ReduceOp::kProduct);
  } else if (step.kind == LocalStep::Kind::kCombine) {
    Combine(target, count);
  } else if (step.kind == LocalStep::Kind::kReduceLast && is_mean && binding_.divisor > 0) {
    ReduceToMean(sources_, {&target, 1}, count, binding_.dtype,
                 static_cast<size_t>(binding_.divisor));
  } else {
    Reduce(sources_, {&target, 1}, count, binding_.dtype,
           is_mean ? ReduceOp::kSum : binding_.reduce_op);
  }
}

void ProgramRun::Combine(std::byte* target, uint64_t count) {
  WeightedMean(sources_, binding_.factors.first(sources_.size()), {target, binding_.dtype}, count,
               terms_);
}

// Launches in the order (wave, strand), as far as waves before are done: two ranks whose runner
// takes few operations never wait for each other's later ones.
absl::Status ProgramRun::Issue() {
  while (next_wave_ < waves_) {
    while (next_strand_ < program_->strands.size()) {
      if (next_wave_ < program_->strands[next_strand_].size()) {
        ASSIGN_OR_RETURN(const bool launched, LaunchWave(next_strand_));
        if (!launched) return absl::OkStatus();
      }
      ++next_strand_;
    }
    next_strand_ = 0;
    ++next_wave_;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ProgramRun::LaunchWave(size_t index) {
  Strand& strand = strands_[index];
  if (strand.wave != next_wave_) return false;  // the one before is not done
  const std::vector<Transfer>& transfers = program_->strands[index][strand.wave].transfers;
  const int32_t tag = binding_.tag + static_cast<int32_t>(index);
  while (strand.launched < transfers.size()) {
    if (in_flight_count_ >= kMaxProgramTransfers) return false;  // the others' room
    const absl::Status status = LaunchTransfer(transfers[strand.launched], tag, strand);
    if (absl::IsResourceExhausted(status)) return false;
    RETURN_IF_ERROR(status);
    ++strand.launched;
  }
  strand.is_open = true;
  Compute(index);  // a wave without transfers
  return true;
}

absl::Status ProgramRun::LaunchTransfer(const Transfer& transfer, int32_t tag, Strand& strand) {
  const bool sends = transfer.direction == Transfer::Direction::kSend;
  const Rank peer = binding_.peers.empty() ? Rank(transfer.peer)
                                           : binding_.peers[static_cast<size_t>(transfer.peer)];
  Operation operation;
  operation.kind = sends ? OperationKind::kSend : OperationKind::kRecv;
  operation.dtype = TypeOf(transfer.piece.buffer);
  const uint64_t bytes = transfer.piece.count * SizeOf(operation.dtype);
  operation.reduce_op = binding_.reduce_op;
  operation.flags = FlagsOf(binding_.kind, binding_.sends_weights);
  operation.peer = peer.value();
  operation.count = transfer.piece.count;
  operation.bucket = binding_.bucket;
  operation.tag = tag;
  // The end that a message has not; see comm/tags.h.
  const auto mark = static_cast<uint64_t>(binding_.shape_mark);
  (sends ? operation.target_offset : operation.source_offset) = mark;
  if (bytes > 0) {
    const Location location = Locate(At(transfer.piece, 0), bytes);
    sends ? operation.set_source(location) : operation.set_target(location);
  }
  HostStream stream;
  ASSIGN_OR_RETURN(const Completion completion, runner_.Launch(operation, stream));
  strand.in_flight.push_back({completion, peer});
  ++in_flight_count_;
  moved_ = true;
  if (sends) sent_bytes_ += bytes;
  return absl::OkStatus();
}

std::vector<Rank> ProgramRun::Awaited() const {
  std::vector<Rank> ranks;
  for (const Strand& strand : strands_) {
    for (const Flight& flight : strand.in_flight) ranks.push_back(flight.peer);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace pelton
