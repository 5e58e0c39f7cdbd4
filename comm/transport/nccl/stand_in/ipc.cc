// CUDA IPC between processes of one host: device memory and events lie in memfds.
#include "comm/transport/nccl/stand_in/ipc.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "comm/transport/nccl/stand_in/controls.h"
#include "core/base/status.h"
#include "core/base/sync.h"

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

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kMemoryAllocation = 2;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotSupported = 801;

// What is mapped, by its beginning. Threads: any. Owns: the memory.
struct Memories {
  static Memories& Get() {
    static Memories* const memories = new Memories;  // outlives every stream
    return *memories;
  }
  Mutex mutex;
  std::map<void*, SharedMemory> by_place ABSL_GUARDED_BY(mutex);
};

// Counts beyond 32 bits are not reached in a test.
struct SharedCounts {
  std::atomic<uint32_t> marked;
  std::atomic<uint32_t> done;
};

// Marks of all processes that map them. Threads: any. Owns: the memory.
class SharedMarks final : public Marks {
 public:
  explicit SharedMarks(SharedMemory memory) : memory_(std::move(memory)) {}

  uint64_t Mark() override { return counts().marked.fetch_add(1) + 1; }
  void Reach(uint64_t mark) override {
    const auto reached = static_cast<uint32_t>(mark);
    uint32_t done = counts().done.load();
    while (done < reached && !counts().done.compare_exchange_weak(done, reached)) {
    }
    FutexWake(&counts().done, kAllSleepers, FutexScope::kShared);
  }
  void WaitFor(uint64_t mark) override {
    for (uint32_t done = counts().done.load(); done < mark; done = counts().done.load()) {
      FutexWait(&counts().done, done, absl::Seconds(1), FutexScope::kShared);
    }
  }
  uint64_t last() override { return counts().marked.load(); }
  bool all_reached() override { return counts().done.load() == counts().marked.load(); }
  const SharedMemory* memory() const override { return &memory_; }

 private:
  SharedCounts& counts() const { return *reinterpret_cast<SharedCounts*>(memory_.data()); }

  const SharedMemory memory_;
};

int ResultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return kMemoryAllocation;
    case absl::StatusCode::kFailedPrecondition:
      return kInvalidContext;
    default:
      return kInvalidHandle;
  }
}

void* Keep(SharedMemory memory) {
  void* const place = memory.data();
  Memories& memories = Memories::Get();
  MutexLock lock(&memories.mutex);
  memories.by_place.emplace(place, std::move(memory));
  return place;
}

}  // namespace

bool HasIpc() {
  const char* text = std::getenv("PELTON_STAND_IN_IPC");
  return text != nullptr && absl::string_view(text) == "1";
}

void* AllocateShared(size_t size_bytes) {
  auto memory = SharedMemory::Make(size_bytes);
  return memory.ok() ? Keep(*std::move(memory)) : nullptr;
}

bool ReleaseShared(void* memory) {
  Memories& memories = Memories::Get();
  MutexLock lock(&memories.mutex);
  return memories.by_place.erase(memory) > 0;
}

bool ShareMarks(CUevent_st& event) {
  auto memory = SharedMemory::Make(sizeof(SharedCounts));
  if (!memory.ok()) return false;
  event.marks = std::make_shared<SharedMarks>(*std::move(memory));
  return true;
}

}  // namespace pelton::stand_in

using pelton::MutexLock;
using pelton::stand_in::Controls;
using pelton::stand_in::IpcHandle;
using pelton::stand_in::Memories;
using pelton::stand_in::SharedMarks;
using pelton::stand_in::SharedMemory;
extern "C" {
int cudaIpcGetMemHandle(IpcHandle* handle, void* memory) {
  if (const int fault = Controls::Get().FaultOf("cudaIpcGetMemHandle")) return fault;
  if (!pelton::stand_in::HasIpc()) return pelton::stand_in::kNotSupported;
  Memories& memories = Memories::Get();
  MutexLock lock(&memories.mutex);
  const auto found = memories.by_place.find(memory);
  if (found == memories.by_place.end()) return pelton::stand_in::kInvalidValue;
  if (!found->second.is_own()) return pelton::stand_in::kInvalidValue;
  *handle = found->second.HandleOf(IpcHandle::kMemory);
  return pelton::stand_in::kSuccess;
}
int cudaIpcOpenMemHandle(void** memory, IpcHandle handle, unsigned) {
  if (const int fault = Controls::Get().FaultOf("cudaIpcOpenMemHandle")) return fault;
  auto opened = SharedMemory::Open(handle, IpcHandle::kMemory);
  if (!opened.ok()) return pelton::stand_in::ResultOf(opened.status());
  *memory = pelton::stand_in::Keep(*std::move(opened));
  Controls::Get().Count(1);
  return pelton::stand_in::kSuccess;
}
int cudaIpcCloseMemHandle(void* memory) {
  if (!pelton::stand_in::ReleaseShared(memory)) return pelton::stand_in::kInvalidValue;
  Controls::Get().Count(-1);
  return pelton::stand_in::kSuccess;
}
int cudaIpcGetEventHandle(IpcHandle* handle, CUevent_st* event) {
  if (const int fault = Controls::Get().FaultOf("cudaIpcGetEventHandle")) return fault;
  const SharedMemory* const memory = event->marks->memory();
  if (memory == nullptr || !memory->is_own()) return pelton::stand_in::kInvalidHandle;
  *handle = memory->HandleOf(IpcHandle::kEvent);
  return pelton::stand_in::kSuccess;
}
int cudaIpcOpenEventHandle(CUevent_st** event, IpcHandle handle) {
  if (const int fault = Controls::Get().FaultOf("cudaIpcOpenEventHandle")) return fault;
  auto opened = SharedMemory::Open(handle, IpcHandle::kEvent);
  if (!opened.ok()) return pelton::stand_in::ResultOf(opened.status());
  *event = new CUevent_st{std::make_shared<SharedMarks>(*std::move(opened))};
  Controls::Get().Count(1);
  return pelton::stand_in::kSuccess;
}
}
