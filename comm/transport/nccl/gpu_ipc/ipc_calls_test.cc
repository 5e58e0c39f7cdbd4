#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/nccl/gpu_ipc/device.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "comm/transport/shm/test_processes.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kSizeBytes = 100'003;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotSupported = 801;

absl::Time FarDeadline() { return Clock::Real().Now() + absl::Seconds(60); }

// The stand-in with a stream, memory and an event that have handles. Threads: one. Owns: them.
class Owner {
 public:
  Owner() {
    calls().stream_create_with_flags(&stream, kStreamNonBlocking);
    calls().allocate(&memory, kSizeBytes);
    calls().event_create_with_flags(&event, kEventDisableTiming | kEventInterprocess);
  }
  ~Owner() {
    calls().stream_destroy(stream);
    calls().event_destroy(event);
    calls().release(memory);
  }

  const CudaTable& calls() const { return runtime->calls(); }
  MemoryHandle OfMemory() const {
    MemoryHandle handle{};
    EXPECT_EQ(ipc.get_memory_handle(&handle, memory), kSuccess);
    return handle;
  }
  SharedEventHandle OfEvent() const {
    SharedEventHandle handle{};
    EXPECT_EQ(ipc.get_event_handle(&handle, event), kSuccess);
    return handle;
  }

  const std::unique_ptr<const CudaRuntime> runtime =
      CudaRuntime::Load(stand_in::LibraryPath()).value();
  const IpcTable ipc = FindIpcCalls(*runtime).value();
  StreamHandle stream = nullptr;
  void* memory = nullptr;
  EventHandle event = nullptr;
};

// Both handles of rank 0, which every rank gets.
struct Handles {
  MemoryHandle memory;
  SharedEventHandle event;
};

absl::StatusOr<Handles> Share(const TransportOptions& options, const Owner& owner) {
  Handles handles{owner.OfMemory(), owner.OfEvent()};
  // The ranks' meeting passes text alone.
  const std::string own =
      absl::BytesToHexString({reinterpret_cast<const char*>(&handles), sizeof handles});
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   options.bootstrap->AllGather("handles", own, FarDeadline()));
  const std::string first = absl::HexStringToBytes(all[0]);
  if (first.size() != sizeof handles) return absl::InternalError("not two handles");
  std::memcpy(&handles, first.data(), sizeof handles);
  return handles;
}

// What rank 0 writes behind its event.
std::string ReadThere(const Owner& here, const Handles& handles) {
  void* there = nullptr;
  EventHandle event = nullptr;
  if (const int result = here.ipc.open_memory_handle(&there, handles.memory, kIpcLazyPeerAccess)) {
    return absl::StrCat("the memory does not open: ", result);
  }
  if (const int result = here.ipc.open_event_handle(&event, handles.event)) {
    return absl::StrCat("the event does not open: ", result);
  }
  std::vector<char> read(kSizeBytes);
  here.calls().stream_wait_event(here.stream, event, 0);
  here.calls().memcpy_async(read.data(), there, kSizeBytes, kMemcpyDefault, here.stream);
  here.calls().stream_synchronize(here.stream);
  const bool is_open = here.calls().event_query(event) == kSuccess;
  here.calls().event_destroy(event);
  here.ipc.close_memory_handle(there);
  if (!is_open) return "what was waited for is not past";
  return read == std::vector<char>(kSizeBytes, 7) ? "" : "other bytes";
}

// A process that has ended takes its memory with it.
std::string AwaitTheOther(const TransportOptions& options) {
  const auto all = options.bootstrap->AllGather("end", "", FarDeadline());
  return all.ok() ? "" : all.status().ToString();
}

TEST(IpcCallsTest, AnotherProcessWaitsForTheEventAndReadsTheMemory) {
  shm::Processes processes(2, [](const TransportOptions& options) -> std::string {
    const Owner owner;
    if (options.rank == Rank(0)) {
      owner.calls().memset_async(owner.memory, 7, kSizeBytes, owner.stream);
      owner.calls().event_record(owner.event, owner.stream);
    }
    const auto handles = Share(options, owner);
    if (!handles.ok()) return handles.status().ToString();
    const std::string error = options.rank == Rank(0) ? "" : ReadThere(owner, *handles);
    return absl::StrCat(error, AwaitTheOther(options));
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(IpcCallsTest, MemoryThatIsGoneDoesNotOpen) {
  shm::Processes processes(2, [](const TransportOptions& options) -> std::string {
    auto owner = std::make_unique<Owner>();
    const auto handles = Share(options, *owner);
    if (!handles.ok()) return handles.status().ToString();
    if (options.rank == Rank(0)) owner.reset();
    const auto all = options.bootstrap->AllGather("freed", "", FarDeadline());
    if (!all.ok()) return all.status().ToString();
    if (options.rank == Rank(0)) return AwaitTheOther(options);
    void* there = nullptr;
    const int result = owner->ipc.open_memory_handle(&there, handles->memory, kIpcLazyPeerAccess);
    const std::string error = AwaitTheOther(options);
    return result == kInvalidHandle ? error : absl::StrCat("it says ", result);
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(IpcCallsTest, AProcessDoesNotOpenItsOwnMemory) {
  const Owner owner;
  void* there = nullptr;
  EXPECT_EQ(owner.ipc.open_memory_handle(&there, owner.OfMemory(), kIpcLazyPeerAccess),
            kInvalidContext);
}

TEST(IpcCallsTest, AHandleOfAnEventIsNoneOfMemory) {
  const Owner owner;
  const SharedEventHandle event = owner.OfEvent();
  MemoryHandle handle;
  std::memcpy(&handle, &event, sizeof handle);
  void* there = nullptr;
  EXPECT_EQ(owner.ipc.open_memory_handle(&there, handle, kIpcLazyPeerAccess), kInvalidHandle);
}

TEST(IpcCallsTest, WithoutTheVariableNothingHasAHandle) {
  const Owner owner;
  unsetenv("PELTON_STAND_IN_IPC");
  MemoryHandle handle;
  const int of_memory = owner.ipc.get_memory_handle(&handle, owner.memory);
  EventHandle event = nullptr;
  const int of_event = owner.calls().event_create_with_flags(&event, kEventInterprocess);
  setenv("PELTON_STAND_IN_IPC", "1", 1);
  EXPECT_EQ(of_memory, kNotSupported);
  EXPECT_EQ(of_event, kNotSupported);
  EXPECT_THAT(owner.calls().get_error_string(kNotSupported), HasSubstr("PELTON_STAND_IN_IPC=1"));
}

}  // namespace
}  // namespace pelton::cuda
