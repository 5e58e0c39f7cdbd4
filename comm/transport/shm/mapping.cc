#include "comm/transport/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/descriptor_limit.h"
#include "core/base/sync.h"

namespace pelton::shm {
namespace {

// The live mappings of this process, by file. A registry in the sense of the style guide.
// Threads: any. Owns: its index, not the mappings.
struct MappingTable {
  static MappingTable& Get() {
    static MappingTable* const table = new MappingTable;  // outlives every mapping
    return *table;
  }
  Mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<const Mapping>> live ABSL_GUARDED_BY(mutex);
};

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
  const FileId id{file.st_dev, file.st_ino};
  const auto size_bytes = static_cast<size_t>(file.st_size);

  MappingTable& table = MappingTable::Get();
  MutexLock lock(&table.mutex);
  std::weak_ptr<const Mapping>& entry = table.live[id];
  if (Pointer live = entry.lock()) return live;
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return SystemError("mmap");
  Pointer mapping(new Mapping(static_cast<std::byte*>(data), size_bytes, id));
  entry = mapping;
  return mapping;
}

Mapping::~Mapping() {
  MappingTable& table = MappingTable::Get();
  MutexLock lock(&table.mutex);
  // Another thread may have mapped the file anew since the last pointer went away.
  if (auto found = table.live.find(file_); found != table.live.end() && found->second.expired()) {
    table.live.erase(found);
  }
  munmap(data_, size_bytes_);
}

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
