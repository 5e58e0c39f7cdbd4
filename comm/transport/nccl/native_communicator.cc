#include "comm/transport/nccl/native_communicator.h"

#include <sched.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::nccl {
namespace {

// Peers that end with this rank come to the end of theirs by then.
constexpr absl::Duration kEndTimeout = absl::Seconds(1);

}  // namespace

Endings::~Endings() {
  const absl::Time deadline = Clock::Real().Now() + kEndTimeout;
  MutexLock lock(&mutex_);
  for (std::unique_ptr<CallThread>& thread : threads_) {
    // It waits for a peer that lives and does not end. NCCL has no call that ends such a wait.
    if (!thread->AwaitIdle(deadline)) thread.release();
  }
}

void Endings::Add(CallThread::Call call) {
  auto thread = std::make_unique<CallThread>("pelton-nccl-end");
  thread->Add(std::move(call));
  MutexLock lock(&mutex_);
  std::erase_if(threads_, [](const auto& made) { return made->AwaitIdle(absl::InfinitePast()); });
  threads_.push_back(std::move(thread));
}

NativeCommunicator::NativeCommunicator(const NcclLibrary& library, const cuda::CudaRuntime& runtime,
                                       int device, std::string what)
    : library_(library), runtime_(runtime), device_(device), what_(std::move(what)) {}

NativeCommunicator::~NativeCommunicator() { Abort(); }

absl::Status NativeCommunicator::Begin(const UniqueId& id, int rank, int rank_count) {
  const cuda::DeviceScope scope(runtime_, device_);
  Config config;
  MutexLock lock(&mutex_);
  if (has_begun_) return absl::AbortedError(absl::StrCat(what_, " was aborted"));
  has_begun_ = true;
  const int result =
      library_.calls().comm_init_rank_config(&handle_, rank_count, id, rank, &config);
  return Annotate(library_.ToStatus(result, "ncclCommInitRankConfig", nullptr), what_);
}

absl::StatusOr<bool> NativeCommunicator::Poll() {
  MutexLock lock(&mutex_);
  return PollLocked();
}

absl::StatusOr<bool> NativeCommunicator::PollLocked() {
  if (handle_ == nullptr) return absl::AbortedError(absl::StrCat(what_, " is not open"));
  int background = kOk;
  const int result = library_.calls().comm_get_async_error(handle_, &background);
  RETURN_IF_ERROR(Annotate(library_.ToStatus(result, "ncclCommGetAsyncError", handle_), what_));
  RETURN_IF_ERROR(
      Annotate(library_.ToStatus(background, "NCCL in the background", handle_), what_));
  return background == kOk;
}

absl::StatusOr<bool> NativeCommunicator::Call(
    absl::string_view name, absl::FunctionRef<int(const NcclTable& calls, Handle comm)> call) {
  MutexLock lock(&mutex_);
  if (handle_ == nullptr) return absl::AbortedError(absl::StrCat(what_, " is not open"));
  const int result = call(library_.calls(), handle_);
  RETURN_IF_ERROR(Annotate(library_.ToStatus(result, name, handle_), what_));
  return result == kOk;
}

absl::StatusOr<void*> NativeCommunicator::Register(void* memory, size_t size_bytes) {
  RETURN_IF_ERROR(library_.Require(Feature::kRegister));
  void* registration = nullptr;
  RETURN_IF_ERROR(Call("ncclCommRegister", [&](const NcclTable& calls, Handle comm) {
                    return calls.comm_register(comm, memory, size_bytes, &registration);
                  }).status());
  return registration;
}

void NativeCommunicator::Deregister(void* registration) {
  // Nothing is left to take back when the communicator is gone, so that error says nothing new.
  Call("ncclCommDeregister", [&](const NcclTable& calls, Handle comm) {
    return calls.comm_deregister(comm, registration);
  }).IgnoreError();
}

void NativeCommunicator::NoteEnd() {
  has_ended_ = true;
  ended_.SignalAll();
}

// NCCL's call is without the lock: whoever makes another one meanwhile finds no communicator, and
// does not wait.
void NativeCommunicator::Abort() {
  Handle handle = nullptr;
  {
    MutexLock lock(&mutex_);
    has_begun_ = true;  // it cannot begin any more
    handle = std::exchange(handle_, nullptr);
    if (handle == nullptr && !is_aborting_) NoteEnd();
    if (handle == nullptr) return;
    is_aborting_ = true;
  }
  library_.calls().comm_abort(handle);
  MutexLock lock(&mutex_);
  NoteEnd();
}

bool NativeCommunicator::AwaitEnd(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!has_ended_ && Clock::Real().Now() < deadline) {
    ended_.WaitWithDeadline(&mutex_, deadline);
  }
  return has_ended_;
}

void NativeCommunicator::Finalize() {
  // An error shows in Close, whose Poll then fails.
  Call("ncclCommFinalize", [](const NcclTable& calls, Handle comm) {
    return calls.comm_finalize(comm);
  }).IgnoreError();
}

void NativeCommunicator::Close(absl::Time deadline, Endings& endings) {
  absl::StatusOr<bool> idle = Poll();
  while (idle.ok() && !*idle && Clock::Real().Now() < deadline) {
    sched_yield();
    idle = Poll();
  }
  const bool is_idle = idle.ok() && *idle;
  MutexLock lock(&mutex_);
  if (handle_ == nullptr) return;
  NoteEnd();
  const NcclTable& calls = library_.calls();
  endings.Add([end = is_idle ? calls.comm_destroy : calls.comm_abort,
               handle = std::exchange(handle_, nullptr)] { end(handle); });
}

}  // namespace pelton::nccl
