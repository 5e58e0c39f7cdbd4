// Another process's shared memory in this one.
#ifndef PELTON_COMM_TRANSPORT_SHM_MAPPING_H_
#define PELTON_COMM_TRANSPORT_SHM_MAPPING_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"

namespace pelton::shm {

// A memfd, mapped. Within one process every memfd is mapped once only, however many transports ask
// for it: so the thread sanitizer sees two ranks in one process touch the same bytes.
// Threads: any; the bytes are the users' to order. Owns: the mapping.
class Mapping {
 public:
  // shared_ptr: who reads from a mapping keeps it, also while its owner takes it back.
  using Pointer = std::shared_ptr<const Mapping>;

  // Maps the whole of `descriptor`, which may be closed afterwards. Errors: InvalidArgument: it is
  // not memory that is sealed against shrinking (a peer could take it away under us).
  static absl::StatusOr<Pointer> Of(int descriptor);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  Mapping(std::byte* data, size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  std::byte* data_;
  size_t size_bytes_;
};

// A new memfd of `size_bytes` zeros, sealed against a change of size; takes memory when touched.
// Errors: ResourceExhausted.
absl::StatusOr<Descriptor> NewSharedMemory(size_t size_bytes, const std::string& name);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_MAPPING_H_
