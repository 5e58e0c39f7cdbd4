#include "comm/window/edge_runs.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/reduction/reduction.h"
#include "comm/transport/shm/remote_memory.h"
#include "core/base/status.h"

namespace pelton {
namespace {

bool IsWhole(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

// In the unsigned type, which wraps by definition. Memory need not be aligned.
template <typename Unsigned>
void WholeSum(absl::Span<const Term> terms, std::byte* target, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    Unsigned sum = 0;
    for (const Term& term : terms) {
      Unsigned element;
      std::memcpy(&element, term.data + i * sizeof(element), sizeof(element));
      sum += element * static_cast<Unsigned>(static_cast<int64_t>(term.factor));
    }
    std::memcpy(target + i * sizeof(sum), &sum, sizeof(sum));
  }
}

// The C library streams large copies past the caches. What fits into the last one is soon read
// again by somebody, so it is copied in pieces that are not large.
void Copy(const std::byte* source, std::byte* target, uint64_t bytes) {
  static const int64_t cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  constexpr uint64_t kPieceBytes = uint64_t{256} << 10;
  const bool fits = static_cast<int64_t>(2 * bytes) <= cache_bytes;
  const uint64_t piece = fits ? kPieceBytes : bytes;
  for (uint64_t done = 0; done < bytes; done += piece) {
    std::memcpy(target + done, source + done, std::min(piece, bytes - done));
  }
}

}  // namespace

absl::Status CheckWindowType(DType dtype) {
  if (IsCombinable(dtype) || IsWhole(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor: a window holds float16, bfloat16, float32, float64, int32 or int64, not ",
      NameOf(dtype)));
}

absl::Status CheckWindowWeight(DType dtype, double weight) {
  if (!std::isfinite(weight)) {
    return absl::InvalidArgumentError(absl::StrCat("weight: ", weight, " is not finite"));
  }
  constexpr double kMost = 9007199254740992.0;  // 2^53: all whole numbers up to it are doubles
  if (IsWhole(dtype) && (weight != std::trunc(weight) || std::abs(weight) > kMost)) {
    return absl::InvalidArgumentError(absl::StrCat("weight: ", weight, " for a window of ",
                                                   NameOf(dtype),
                                                   "; give whole weights, or use float64"));
  }
  return absl::OkStatus();
}

void WeightedSum(absl::Span<const Term> terms, std::byte* target, uint64_t count, DType dtype) {
  if (count == 0) return;
  if (dtype == DType::kInt32) return WholeSum<uint32_t>(terms, target, count);
  if (dtype == DType::kInt64) return WholeSum<uint64_t>(terms, target, count);
  if (terms.size() == 1 && terms[0].factor == 1) {
    if (terms[0].data != target) Copy(terms[0].data, target, count * SizeOf(dtype));
    return;
  }
  LinearCombination(terms, {target, dtype}, count);
}

void MeanOf(absl::Span<const Term> terms, std::byte* target, uint64_t count, DType dtype,
            size_t divisor) {
  if (count == 0) return;
  std::vector<const std::byte*> sources;
  sources.reserve(terms.size());
  for (const Term& term : terms) sources.push_back(term.data);
  ReduceToMean(sources, {&target, 1}, count, dtype, divisor);
}

absl::StatusOr<bool> EdgeWrite::Advance() {
  if (!draft_.has_value()) {
    draft_ = edge_.inlet->Begin();
    RETURN_IF_ERROR(edge_.Provide(draft_->buffer));
    return false;
  }
  if (done_ == what_.count) return Publish();
  const uint64_t count = std::min(what_.step_count, what_.count - done_);
  const uint64_t offset = done_ * SizeOf(what_.dtype);
  Term terms[2];
  size_t term_count = 0;
  if (what_.adds && !draft_->is_zero) {
    terms[term_count++] = {edge_.buffer(draft_->base) + offset, 1, what_.dtype};
  }
  terms[term_count++] = {what_.source + offset, what_.weight, what_.dtype};
  WeightedSum({terms, term_count}, edge_.buffer(draft_->buffer) + offset, count, what_.dtype);
  done_ += count;
  return false;
}

// The owner may have taken away what the sum was made of: then the sum is made anew.
bool EdgeWrite::Publish() {
  if (!what_.adds) {
    edge_.inlet->Put(*draft_, what_.p);
    return true;
  }
  const std::optional<Inlet::Draft> again = edge_.inlet->Add(*draft_, what_.p.value_or(0));
  if (!again.has_value()) return true;
  draft_ = *again;
  done_ = 0;
  return false;
}

absl::StatusOr<bool> EdgeFill::Advance() {
  if (buffer_ < 0) {
    buffer_ = edge_.inlet->BeginFill();
    RETURN_IF_ERROR(edge_.Provide(buffer_));
    return false;
  }
  if (done_ == what_.count) {
    edge_.inlet->Fill(buffer_);
    return true;
  }
  const uint64_t count = std::min(what_.step_count, what_.count - done_);
  const uint64_t offset = done_ * SizeOf(what_.dtype);
  std::byte* const target = edge_.buffer(buffer_) + offset;
  RETURN_IF_ERROR(
      shm::ReadMemory(what_.pid, what_.address + offset, target, count * SizeOf(what_.dtype)));
  if (what_.weight != 1) {
    const Term term{target, what_.weight, what_.dtype};
    WeightedSum({&term, 1}, target, count, what_.dtype);
  }
  done_ += count;
  return false;
}

OwnerUpdate::OwnerUpdate(What what) : what_(std::move(what)) {
  terms_.push_back({what_.tensor, what_.own_weight, what_.dtype});
  if (what_.p.has_value() && !what_.is_mean) *what_.p *= what_.own_weight;
}

bool OwnerUpdate::Advance() {
  if (taken_ < what_.sources.size()) {
    Take();
    return false;
  }
  if (done_ < what_.count) {
    Combine();
    return false;
  }
  for (const Source& source : what_.sources) source.edge.inlet->Release();
  return true;
}

// One inlet; the value that is read and the one that a reset takes away are the same.
void OwnerUpdate::Take() {
  const Source& source = what_.sources[taken_++];
  const Inlet::View view = source.edge.inlet->Take(
      {.resets = what_.resets, .resets_p = what_.resets && what_.p.has_value()});
  if (!view.is_zero) {
    terms_.push_back({source.edge.buffer(view.buffer), source.weight, what_.dtype});
  }
  if (!what_.p.has_value()) return;
  *what_.p += what_.is_mean ? view.p : source.weight * view.p;
  const size_t all = what_.sources.size() + 1;
  if (what_.is_mean && taken_ + 1 == all) *what_.p /= static_cast<double>(all);
}

void OwnerUpdate::Combine() {
  const uint64_t count = std::min(what_.step_count, what_.count - done_);
  const uint64_t offset = done_ * SizeOf(what_.dtype);
  std::vector<Term> terms = terms_;
  for (Term& term : terms) term.data += offset;
  std::byte* const target = what_.target + offset;
  if (what_.is_mean) {
    MeanOf(terms, target, count, what_.dtype, what_.sources.size() + 1);
  } else {
    WeightedSum(terms, target, count, what_.dtype);
  }
  done_ += count;
}

}  // namespace pelton
