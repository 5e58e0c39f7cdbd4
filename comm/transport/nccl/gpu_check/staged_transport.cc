#include "comm/transport/nccl/gpu_check/staged_transport.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/communicator.h"
#include "comm/transport/operation_check.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr size_t kArenaBytes = size_t{256} << 20;
constexpr size_t kAlignmentBytes = 512;

// An operation's tensors on both sides. Threads: a value. Owns: nothing.
struct Staged {
  uint64_t ticket = 0;
  std::byte* host_target = nullptr;
  std::byte* device_target = nullptr;
  size_t target_bytes = 0;
  bool is_done = true;
};

// Threads: as Communicator. Owns: a piece of the device's memory and a stream for the copies.
class StagedCommunicator final : public ForwardingCommunicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> wrapped, const cuda::CudaRuntime& runtime)
      : ForwardingCommunicator(std::move(wrapped)), runtime_(runtime) {}
  ~StagedCommunicator() override {
    runtime_.calls().stream_synchronize(stream_);
    runtime_.calls().stream_destroy(stream_);
    runtime_.calls().release(arena_);
  }

  absl::Status Allocate() {
    void* arena = nullptr;
    RETURN_IF_ERROR(
        runtime_.ToStatus(runtime_.calls().allocate(&arena, kArenaBytes), "cudaMalloc"));
    arena_ = static_cast<std::byte*>(arena);
    return runtime_.ToStatus(
        runtime_.calls().stream_create_with_flags(&stream_, cuda::kStreamNonBlocking),
        "cudaStreamCreateWithFlags");
  }

  // The suite's regions are the host's, which no operation here reaches.
  absl::Status Register(const Region&) override { return absl::OkStatus(); }
  void Deregister(RegionId) override {}

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    // What it refuses, it refuses in its own words.
    if (!CheckOperation(operation, rank(), world_size()).ok()) {
      return ForwardingCommunicator::Launch(operation, stream);
    }
    absl::StatusOr<OperationMemory> memory = ResolveOperation(operation, rank(), world_size());
    if (!memory.ok()) return memory.status();
    Operation on_device = operation;
    Staged staged;
    RETURN_IF_ERROR(Stage(*memory, on_device, staged));
    ASSIGN_OR_RETURN(const Completion completion,
                     ForwardingCommunicator::Launch(on_device, stream));
    staged.ticket = completion.ticket;
    staged.is_done = false;
    flights_[completion.ticket % flights_.size()] = staged;
    return completion;
  }

  State Query(Completion completion) override {
    const State state = ForwardingCommunicator::Query(completion);
    Staged& staged = flights_[completion.ticket % flights_.size()];
    if (!state.done || staged.ticket != completion.ticket || staged.is_done) return state;
    staged.is_done = true;
    if (!state.status.ok() || staged.target_bytes == 0) return state;
    return {true, Copy(staged.host_target, staged.device_target, staged.target_bytes)};
  }

 private:
  absl::Status Copy(std::byte* target, const std::byte* source, size_t size_bytes) {
    RETURN_IF_ERROR(runtime_.ToStatus(
        runtime_.calls().memcpy_async(target, source, size_bytes, cuda::kMemcpyDefault, stream_),
        "cudaMemcpyAsync"));
    return runtime_.ToStatus(runtime_.calls().stream_synchronize(stream_), "cudaStreamSynchronize");
  }

  absl::StatusOr<std::byte*> Take(const std::byte* like, size_t size_bytes) {
    const bool idle = std::all_of(flights_.begin(), flights_.end(),
                                  [](const Staged& staged) { return staged.is_done; });
    if (idle && !has_staged_half_) used_bytes_ = 0;
    // The same place within a cache line, so that what is unaligned here is unaligned there.
    const size_t offset = used_bytes_ + reinterpret_cast<uintptr_t>(like) % kAlignmentBytes;
    if (offset + size_bytes > kArenaBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the staging memory of ", kArenaBytes, " bytes is full"));
    }
    used_bytes_ = (offset + size_bytes + kAlignmentBytes) / kAlignmentBytes * kAlignmentBytes;
    return arena_ + offset;
  }

  absl::Status Stage(const OperationMemory& memory, Operation& operation, Staged& staged) {
    const Extent extent = ExtentOf(operation, rank(), world_size());
    std::byte* const source = memory.source;
    std::byte* const target = memory.target;
    const bool overlap = extent.source_bytes > 0 && extent.target_bytes > 0 &&
                         source < target + extent.target_bytes &&
                         target < source + extent.source_bytes;
    std::byte* on_device_source = nullptr;
    std::byte* on_device_target = nullptr;
    has_staged_half_ = false;
    if (overlap) {
      std::byte* const begin = std::min(source, target);
      const std::byte* end = std::max(source + extent.source_bytes, target + extent.target_bytes);
      ASSIGN_OR_RETURN(std::byte* const there, Take(begin, static_cast<size_t>(end - begin)));
      on_device_source = there + (source - begin);
      on_device_target = there + (target - begin);
    } else {
      ASSIGN_OR_RETURN(on_device_source, Take(source, extent.source_bytes));
      has_staged_half_ = true;
      ASSIGN_OR_RETURN(on_device_target, Take(target, extent.target_bytes));
      has_staged_half_ = false;
    }
    if (extent.source_bytes > 0) {
      RETURN_IF_ERROR(Copy(on_device_source, source, extent.source_bytes));
    } else if (extent.target_bytes > 0) {
      // A broadcast reads its target on the root.
      RETURN_IF_ERROR(Copy(on_device_target, target, extent.target_bytes));
    }
    operation.set_source({kPrivateRegion, reinterpret_cast<uintptr_t>(on_device_source)});
    operation.set_target({kPrivateRegion, reinterpret_cast<uintptr_t>(on_device_target)});
    staged.host_target = target;
    staged.device_target = on_device_target;
    staged.target_bytes = extent.target_bytes;
    return absl::OkStatus();
  }

  const cuda::CudaRuntime& runtime_;
  std::byte* arena_ = nullptr;
  size_t used_bytes_ = 0;
  bool has_staged_half_ = false;  // an operation's source lies in the arena and is in no flight yet
  cuda::StreamHandle stream_ = nullptr;
  std::array<Staged, limits::kMaxOperationsInFlight> flights_;  // by ticket
};

// Threads: as Transport. Owns: the device's transport.
class StagedTransport final : public Transport {
 public:
  StagedTransport(std::unique_ptr<Transport> wrapped, const cuda::CudaRuntime& runtime, int device)
      : wrapped_(std::move(wrapped)), runtime_(runtime), device_(device) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, wrapped_->Open(id, group, deadline));
    const cuda::DeviceScope scope(runtime_, device_);
    auto staged = std::make_unique<StagedCommunicator>(std::move(opened), runtime_);
    RETURN_IF_ERROR(staged->Allocate());
    return staged;
  }
  void Abort(const absl::Status& reason) override { wrapped_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> wrapped_;
  const cuda::CudaRuntime& runtime_;
  const int device_;
};

}  // namespace

std::unique_ptr<Transport> MakeStagedTransport(std::unique_ptr<Transport> device_transport,
                                               const cuda::CudaRuntime& runtime, int device) {
  return std::make_unique<StagedTransport>(std::move(device_transport), runtime, device);
}

}  // namespace pelton
