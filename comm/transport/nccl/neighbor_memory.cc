#include "comm/transport/nccl/neighbor_memory.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"

namespace pelton::nccl {
namespace {

// Of tensors side by side: what the kernel reads at once, and the network likes.
constexpr size_t kAlignmentBytes = 256;

size_t Aligned(size_t size_bytes) {
  return (size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

NeighborMemory::~NeighborMemory() {
  events_.Return(is_free_);
  for (void* const piece : pieces_) runtime_.calls().release(piece);
}

absl::Status NeighborMemory::Reserve(size_t size_bytes) {
  if (size_bytes <= size_bytes_) return absl::OkStatus();
  const size_t grown = std::max(size_bytes, 2 * size_bytes_);
  const cuda::DeviceScope scope(runtime_, device_);
  void* piece = nullptr;
  RETURN_IF_ERROR(runtime_.ToStatus(runtime_.calls().allocate(&piece, grown), "cudaMalloc"));
  pieces_.push_back(piece);
  size_bytes_ = grown;
  uploaded_ = nullptr;
  return absl::OkStatus();
}

absl::Status NeighborMemory::Begin(Flight& flight, cuda::StreamHandle stream) {
  const WeightTable& table = *flight.neighbor.table;
  const size_t sources = table.sources().size();
  const size_t doubles = 1 + 2 * sources + table.destinations().size();
  const size_t head_bytes = Aligned(doubles * sizeof(double));
  const size_t stride_bytes = Aligned(flight.operation.count * flight.mapping.per_element);
  RETURN_IF_ERROR(Reserve(head_bytes + sources * stride_bytes));
  auto* const head = static_cast<double*>(pieces_.back());
  NeighborPlace& place = flight.neighbor.place;
  place.factors = head;
  place.leaving = head + 1 + sources;
  place.arrived = place.leaving + table.destinations().size();
  place.tensors = static_cast<std::byte*>(pieces_.back()) + head_bytes;
  place.stride_bytes = stride_bytes;
  if (is_free_ != nullptr && stream != stream_) {
    RETURN_IF_ERROR(runtime_.ToStatus(runtime_.calls().stream_wait_event(stream, is_free_, 0),
                                      "cudaStreamWaitEvent"));
  }
  if (uploaded_ == flight.neighbor.table) return absl::OkStatus();
  RETURN_IF_ERROR(Upload(flight, stream));
  uploaded_ = flight.neighbor.table;
  return absl::OkStatus();
}

absl::Status NeighborMemory::Upload(const Flight& flight, cuda::StreamHandle stream) {
  const std::vector<double>& factors = flight.neighbor.factors;
  return runtime_.ToStatus(
      runtime_.calls().memcpy_async(flight.neighbor.place.factors, factors.data(),
                                    factors.size() * sizeof(double), cuda::kMemcpyDefault, stream),
      "cudaMemcpyAsync");
}

absl::Status NeighborMemory::Combine(const Flight& flight, cuda::StreamHandle stream) const {
  const NeighborPlace& place = flight.neighbor.place;
  const WeightTable& table = *flight.neighbor.table;
  const PeltonMean mean = {flight.memory.source,
                           place.tensors,
                           place.stride_bytes,
                           static_cast<int32_t>(table.sources().size()),
                           static_cast<int32_t>(flight.operation.dtype),
                           place.factors,
                           table.sends_weights() ? place.arrived : nullptr,
                           flight.memory.target,
                           flight.operation.count};
  const cuda::DeviceScope scope(runtime_, device_);
  return runtime_.ToStatus(flight.neighbor.kernel(&mean, stream), "pelton_weighted_mean");
}

absl::Status NeighborMemory::End(const Flight& flight, cuda::StreamHandle stream) {
  if (flight.difference.ok()) RETURN_IF_ERROR(Combine(flight, stream));
  stream_ = stream;
  events_.Return(std::exchange(is_free_, nullptr));
  ASSIGN_OR_RETURN(is_free_, events_.Record(stream));
  return absl::OkStatus();
}

}  // namespace pelton::nccl
