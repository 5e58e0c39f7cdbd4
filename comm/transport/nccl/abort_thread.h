// Ends NCCL's communicators while their own thread is elsewhere.
#ifndef PELTON_COMM_TRANSPORT_NCCL_ABORT_THREAD_H_
#define PELTON_COMM_TRANSPORT_NCCL_ABORT_THREAD_H_

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "comm/transport/nccl/native_communicator.h"
#include "core/base/sync.h"

namespace pelton::nccl {

// An abort waits for the device to let go, which whoever aborts must not do, and a kernel that
// hangs for want of a peer would otherwise hold the device's streams until the next Progress.
// Threads: any. Owns: its thread, and a share of what it has to abort: the communicator that was
// aborted may be destroyed meanwhile.
class AbortThread {
 public:
  using Natives = std::vector<std::shared_ptr<NativeCommunicator>>;

  AbortThread() : thread_([this] { Run(); }) {}
  ~AbortThread() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.Signal();
    }
    thread_.join();
  }
  AbortThread(const AbortThread&) = delete;
  AbortThread& operator=(const AbortThread&) = delete;

  // Blocks: never.
  void Abort(const Natives& natives) {
    MutexLock lock(&mutex_);
    waiting_.insert(waiting_.end(), natives.begin(), natives.end());
    changed_.Signal();
  }

 private:
  void Run() {
    while (true) {
      Natives natives;
      {
        MutexLock lock(&mutex_);
        while (waiting_.empty() && !stopping_) {
          changed_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
        }
        if (waiting_.empty()) return;
        natives = std::exchange(waiting_, {});
      }
      for (const auto& native : natives) native->Abort();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  Natives waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_ABORT_THREAD_H_
