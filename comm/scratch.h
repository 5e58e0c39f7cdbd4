// Memory of a stage's own that the peers of a communicator may reach directly.
#ifndef PELTON_COMM_SCRATCH_H_
#define PELTON_COMM_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"

namespace pelton {

// Threads: its stage's. Owns: the region and its registration with the communicator, which outlives
// it.
class Scratch {
 public:
  // Zeros, in the host's memory or in that of `device`, which outlives it. Errors: those of
  // Region::Create, DeviceQueue::Allocate and Communicator::Register.
  static absl::StatusOr<std::unique_ptr<Scratch>> Create(Communicator& communicator,
                                                         const std::string& name,
                                                         uint64_t size_bytes,
                                                         DeviceQueue* device = nullptr);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::byte* data() const;
  // Of the byte at `offset_bytes`, for an operation.
  Location At(uint64_t offset_bytes) const;

 private:
  Scratch(Communicator& communicator, std::unique_ptr<Region> region, DeviceQueue* device);

  Communicator& communicator_;
  std::unique_ptr<Region> region_;
  DeviceQueue* const device_;  // whose memory it is; null: the region's own
};

}  // namespace pelton

#endif  // PELTON_COMM_SCRATCH_H_
