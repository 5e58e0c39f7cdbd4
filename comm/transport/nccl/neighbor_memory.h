// Memory of the device in which an average of neighbours keeps what arrives.
#ifndef PELTON_COMM_TRANSPORT_NCCL_NEIGHBOR_MEMORY_H_
#define PELTON_COMM_TRANSPORT_NCCL_NEIGHBOR_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/nccl/event_pool.h"
#include "comm/transport/nccl/flight.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton::nccl {

// One piece of memory, which grows and is used by one average after another, whatever their
// streams: the next one's receives begin when the last one's kernel is done. Growing frees nothing
// before the end, because the driver waits for the device in that, which may wait for a peer; each
// piece is at least twice as large as the one before, so that all of them take at most twice the
// largest.
//
// Threads: that of its communicator. Owns: its memory and an event. The device is done with both
// when it is destroyed.
class NeighborMemory {
 public:
  NeighborMemory(const cuda::CudaRuntime& runtime, EventPool& events, int device)
      : runtime_(runtime), events_(events), device_(device) {}
  ~NeighborMemory();
  NeighborMemory(const NeighborMemory&) = delete;
  NeighborMemory& operator=(const NeighborMemory&) = delete;

  // Gives an average its place, in which the factors are when the stream comes so far. Errors: the
  // device's; ResourceExhausted: it has not enough memory.
  absl::Status Begin(Flight& flight, cuda::StreamHandle stream);
  // Puts the kernel behind what is on the stream; the next average may begin behind that. An
  // average one of whose edges differs has no result.
  absl::Status End(const Flight& flight, cuda::StreamHandle stream);

 private:
  absl::Status Reserve(size_t size_bytes);
  absl::Status Upload(const Flight& flight, cuda::StreamHandle stream);
  absl::Status Combine(const Flight& flight, cuda::StreamHandle stream) const;

  const cuda::CudaRuntime& runtime_;
  EventPool& events_;
  const int device_;
  std::vector<void*> pieces_;                    // the last one is in use
  size_t size_bytes_ = 0;                        // of that
  std::shared_ptr<const WeightTable> uploaded_;  // whose factors are there; shared: see its Create
  cuda::StreamHandle stream_ = nullptr;          // of the last average
  cuda::EventHandle is_free_ = nullptr;          // behind the last average; null: there was none
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_NEIGHBOR_MEMORY_H_
