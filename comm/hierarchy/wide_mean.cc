#include "comm/hierarchy/wide_mean.h"

#include <algorithm>
#include <cstring>

#include "comm/reduction/half.h"
#include "core/base/status.h"

namespace pelton::hierarchy {
namespace {

constexpr uint64_t kCountPerStep = uint64_t{64} << 10;

}  // namespace

WideMean::~WideMean() {
  if (region_ != nullptr) wires_.Deregister(region_->id());
}

bool WideMean::IsFor(const Operation& operation, const Layout& layout) {
  const bool has_equal_hosts = layout.lane_count() * layout.host_count() == layout.world_size();
  return Reduces(operation.kind) && operation.reduce_op == ReduceOp::kAvg &&
         operation.dtype == DType::kFloat16 && !has_equal_hosts;
}

absl::Status WideMean::Start(const Operation& operation, const OperationMemory& memory, Rank rank,
                             WorldSize world_size) {
  const Extent extent = ExtentOf(operation, rank, world_size);
  const uint64_t size = SizeOf(DType::kFloat16);
  source_count_ = extent.source_bytes / size;
  target_count_ = extent.target_bytes / size;
  const bool is_apart = HasChunks(TraitsOf(operation.kind).source);
  target_begin_ = is_apart ? source_count_ : 0;
  const uint64_t size_bytes = (source_count_ + (is_apart ? target_count_ : 0)) * sizeof(float);
  if (region_ == nullptr || region_->size_bytes() < size_bytes) {
    if (region_ != nullptr) wires_.Deregister(region_->id());
    region_.reset();
    ASSIGN_OR_RETURN(region_, Region::Create(std::max<uint64_t>(size_bytes, 1), "wide-mean"));
    RETURN_IF_ERROR(wires_.Register(*region_));
  }
  narrow_ = memory;
  operation_ = operation;
  operation_.dtype = DType::kFloat32;
  operation_.set_source({region_->id(), 0});
  operation_.set_target({region_->id(), target_begin_ * sizeof(float)});
  done_count_ = 0;
  is_active_ = true;
  return absl::OkStatus();
}

OperationMemory WideMean::memory() const {
  return {region_->data(), region_->data() + target_begin_ * sizeof(float)};
}

bool WideMean::Widen() {
  auto* const wide = reinterpret_cast<float*>(region_->data());
  const uint64_t end = std::min(source_count_, done_count_ + kCountPerStep);
  for (; done_count_ < end; ++done_count_) {
    uint16_t bits;
    std::memcpy(&bits, narrow_.source + done_count_ * sizeof bits, sizeof bits);
    wide[done_count_] = FloatFromFloat16(bits);
  }
  if (end < source_count_) return false;
  done_count_ = 0;
  return true;
}

bool WideMean::Narrow() {
  const auto* const wide = reinterpret_cast<const float*>(region_->data()) + target_begin_;
  const uint64_t end = std::min(target_count_, done_count_ + kCountPerStep);
  for (; done_count_ < end; ++done_count_) {
    const uint16_t bits = Float16FromFloat(wide[done_count_]);
    std::memcpy(narrow_.target + done_count_ * sizeof bits, &bits, sizeof bits);
  }
  is_active_ = end < target_count_;
  return !is_active_;
}

}  // namespace pelton::hierarchy
