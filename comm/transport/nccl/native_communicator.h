// NCCL's own communicator, made safe to abort from another thread.
#ifndef PELTON_COMM_TRANSPORT_NCCL_NATIVE_COMMUNICATOR_H_
#define PELTON_COMM_TRANSPORT_NCCL_NATIVE_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/nccl/nccl_library.h"
#include "core/base/sync.h"
#include "core/base/threads.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton::nccl {

// Calls that end communicators, each on a thread of its own. ncclCommDestroy and ncclCommAbort
// return when every rank of the host has called one of them for that communicator, which each does
// at a time of its own, as where a model is dropped when a rank's garbage collector finds it, and
// in an order of its own where several end. Whoever waited for them could keep a peer from getting
// there, and so could one thread that makes them one after the other.
// Threads: any. Owns: the threads. At the end of these a call that waits for a peer is left to
// itself, somewhere in NCCL: it has to own all that it uses after that.
class Endings {
 public:
  Endings() = default;
  // Blocks: until all calls are made, for a second at most.
  ~Endings();
  Endings(const Endings&) = delete;
  Endings& operator=(const Endings&) = delete;

  // Blocks: never.
  void Add(CallThread::Call call);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<CallThread>> threads_ ABSL_GUARDED_BY(mutex_);
};

// A communicator none of whose calls blocks: NCCL goes on in the background and is asked by Poll.
// NCCL allows one call at a time on a communicator and none after an abort; a lock keeps both.
// Threads: any. Owns: NCCL's communicator.
class NativeCommunicator {
 public:
  // `what` names it in errors. The libraries outlive it.
  NativeCommunicator(const NcclLibrary& library, const cuda::CudaRuntime& runtime, int device,
                     std::string what);
  ~NativeCommunicator();  // aborts it if it is open
  NativeCommunicator(const NativeCommunicator&) = delete;
  NativeCommunicator& operator=(const NativeCommunicator&) = delete;

  // Begins to meet the other ranks, who have the same id; once. Blocks: never.
  absl::Status Begin(const UniqueId& id, int rank, int rank_count);

  // True if NCCL has done all that it was told and takes the next call, false if it is still at it.
  // Errors: what it found out in the background, for instance that a peer is gone; Aborted: after
  // Abort.
  absl::StatusOr<bool> Poll();

  // Makes one call, named in errors. True if it is on the device's stream, false if NCCL will put
  // it there in the background: Poll then. Blocks: never.
  absl::StatusOr<bool> Call(absl::string_view name,
                            absl::FunctionRef<int(const NcclTable& calls, Handle comm)> call);

  // Makes memory known to the network and to the other GPUs, so that it is read without a copy.
  // Errors: Unimplemented: this version cannot.
  absl::StatusOr<void*> Register(void* memory, size_t size_bytes);
  void Deregister(void* registration);

  // Ends everything on the device, which does not touch the operations' memory any more on return.
  // Blocks: until then, and until the host's other ranks have ended theirs, which one that is
  // stopped never does.
  void Abort();
  // False: nobody has ended it by `deadline`, or NCCL is still at the abort. Blocks: until then.
  bool AwaitEnd(absl::Time deadline);
  // Ends it in good order, in two steps, so that several end at once, while no operation is in
  // flight. The rest of the end is a call in `endings`: it waits for the other ranks. Blocks:
  // Close: until NCCL has wound up what is this rank's, or `deadline`; then that call is an abort.
  void Finalize();
  void Close(absl::Time deadline, Endings& endings);

 private:
  void NoteEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> PollLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NcclLibrary& library_;
  const cuda::CudaRuntime& runtime_;
  const int device_;
  const std::string what_;
  mutable Mutex mutex_;
  Handle handle_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null before Begin and after the end
  bool has_begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_aborting_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar ended_;
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_NATIVE_COMMUNICATOR_H_
