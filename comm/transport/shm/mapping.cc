#include "comm/transport/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_limits.h"
#include "core/base/sharing.h"

namespace pelton::shm {
namespace {

using FileId = std::pair<uint64_t, uint64_t>;  // device and inode

// The live mappings of this process. A registry in the sense of the style guide.
LiveTable<FileId, const Mapping>& Mappings() {
  static auto* const mappings = new LiveTable<FileId, const Mapping>;  // outlives every mapping
  return *mappings;
}

absl::Status SystemError(absl::string_view call) {
  return absl::ResourceExhaustedError(absl::StrCat(call, ": ", ErrorText(errno)));
}

}  // namespace

absl::StatusOr<Mapping::Pointer> Mapping::Of(int descriptor) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("descriptor: not memory that is sealed against shrinking");
  }
  struct stat file;
  if (fstat(descriptor, &file) != 0) return SystemError("fstat");
  const auto size_bytes = static_cast<size_t>(file.st_size);
  return Mappings().FindOrMake({file.st_dev, file.st_ino}, [&]() -> absl::StatusOr<Pointer> {
    void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) return SystemError("mmap");
    return Pointer(new Mapping(static_cast<std::byte*>(data), size_bytes));
  });
}

Mapping::~Mapping() { munmap(data_, size_bytes_); }

absl::StatusOr<Descriptor> NewSharedMemory(size_t size_bytes, const std::string& name) {
  Descriptor memory(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.is_open()) return SystemError("memfd_create");
  if (ftruncate(memory.get(), static_cast<off_t>(size_bytes)) != 0) return SystemError("ftruncate");
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return SystemError("sealing");
  }
  return memory;
}

}  // namespace pelton::shm
