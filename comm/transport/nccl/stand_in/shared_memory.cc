#include "comm/transport/nccl/stand_in/shared_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton::stand_in {

absl::StatusOr<SharedMemory> SharedMemory::Make(size_t size_bytes) {
  ASSIGN_OR_RETURN(Descriptor descriptor, shm::NewSharedMemory(size_bytes, "pelton-stand-in"));
  ASSIGN_OR_RETURN(shm::Mapping::Pointer mapping, shm::Mapping::Of(descriptor.get()));
  return SharedMemory(std::move(descriptor), std::move(mapping));
}

absl::StatusOr<SharedMemory> SharedMemory::Open(const IpcHandle& handle, IpcHandle::Kind kind) {
  if (handle.kind != kind) return absl::InvalidArgumentError("handle: not one of this kind");
  if (handle.process == getpid()) {
    return absl::FailedPreconditionError("handle: of this process, which has the memory already");
  }
  const std::string path = absl::StrCat("/proc/", handle.process, "/fd/", handle.descriptor);
  const Descriptor descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!descriptor.is_open()) return absl::NotFoundError(absl::StrCat(path, " is not there"));
  ASSIGN_OR_RETURN(shm::Mapping::Pointer mapping, shm::Mapping::Of(descriptor.get()));
  return SharedMemory({}, std::move(mapping));
}

IpcHandle SharedMemory::HandleOf(IpcHandle::Kind kind) const {
  return {kind, getpid(), descriptor_.get(), {}};
}

}  // namespace pelton::stand_in
