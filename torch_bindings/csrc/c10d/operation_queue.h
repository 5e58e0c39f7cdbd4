// Runs a process group's jobs in the order of their calls.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_OPERATION_QUEUE_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_OPERATION_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/await.h"
#include "comm/communicator.h"
#include "core/base/sync.h"
#include "torch_bindings/csrc/c10d/job.h"

namespace pelton::torch_bindings {

// The collectives are launched in the order in which they are given (ORDER-1), and so are the
// users' messages, of which a bounded number is in flight. One thread at a time *drives*: it
// launches, makes progress and finishes jobs. A caller that waits drives by itself, so that a small
// operation costs no hop to another thread; the queue's own thread drives while nobody waits. No
// lock is held while closures run or die: they may need Python's lock. A callback may wait for a
// future that a later job's callback completes (PyTorch's PowerSGD hook does): while one is busy,
// another thread of the queue's drives.
// Threads: any. Owns: the communicator; its threads until Stop.
class OperationQueue : public std::enable_shared_from_this<OperationQueue> {
 public:
  // Shared: work objects borrow the queue while they wait; the communicator brings its backend
  // along. Whoever creates a queue calls Stop.
  static std::shared_ptr<OperationQueue> Create(std::shared_ptr<Communicator> communicator);
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  // Blocks: never for long.
  JobHandle Enqueue(Job job);
  // The same, and waits for its end. Blocks: until done, at most until the job's deadline.
  JobHandle Run(Job job);
  // Whether `job` is done. Blocks: until it is, or `deadline`; the job goes on after that.
  bool Wait(const JobHandle& job, absl::Time deadline);
  // Calls `callback` once with the job's status, after its end; here and now if that has come. One
  // callback per job.
  void OnDone(const JobHandle& job, JobState::Callback callback);

  // Ends everything in flight, and all that comes, with `reason`, on every rank. Blocks: never.
  void Abort(const absl::Status& reason) { communicator_->Abort(reason); }
  // Ends the queue's threads and refuses later jobs; what is in flight is aborted. Idempotent.
  // Blocks: until nobody uses the jobs' memory any more, limits::kStopTimeout at most.
  void Stop();

  // Number of jobs given so far.
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  using DueCallbacks = std::vector<std::pair<JobState::Callback, JobHandle>>;

  explicit OperationQueue(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  JobHandle Add(Job job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Await(const JobHandle& job, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AwaitDriver(absl::Time deadline, AttendedWait* wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunThread();
  // Lets a thread of the queue's drive if nobody else would.
  void Attend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsUnattended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !driven_ && waiters_ == 0 && unfinished_ > 0;
  }
  // Has the driver's role until `stop`, `deadline`, or callbacks are due, which it returns; or
  // until `wait`, if there is one, does not go on.
  DueCallbacks Drive(absl::FunctionRef<bool()> stop, absl::Time deadline,
                     AttendedWait* wait = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Call(DueCallbacks callbacks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The driver's; the mutex is not held.
  void Progress(absl::FunctionRef<bool()> stop, absl::Time deadline, AttendedWait* wait);
  void Advance();
  void TakeIncoming();
  using Backlog = std::deque<JobHandle>;
  void LaunchBacklogs();
  Backlog& BacklogOf(const JobState& job) { return backlogs_[static_cast<size_t>(job.job_.lane)]; }
  bool LaunchFirst(Backlog& backlog);
  bool IsPostponed(const JobState& job) const;
  void LaunchPostponed();
  bool LaunchNext(JobState& job);
  bool HasRoomFor(const JobState& job) const;
  void Poll(JobState& job);
  bool ExtendJobs();
  bool IsOver(const JobState& job) const;
  void Finish(const JobHandle& job);
  std::string WhatIsMissing(const JobState& job) const;
  void AbortOverdue(absl::Time now);
  bool IsIdle() const {
    return jobs_.empty() && backlogs_[0].empty() && backlogs_[1].empty() && !has_incoming_.load();
  }

  const std::shared_ptr<Communicator> communicator_;  // shared: see Create
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> has_incoming_{false};
  std::atomic<bool> is_wanted_{false};  // the queue's thread shall give the role to a waiter

  Mutex mutex_;
  CondVar thread_wakes_;
  CondVar waiter_wakes_;
  std::vector<JobHandle> incoming_ ABSL_GUARDED_BY(mutex_);
  bool driven_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  // One from the first job that nobody waits for; more where callbacks hold those there are.
  static constexpr size_t kMostThreads = 16;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  size_t idle_threads_ ABSL_GUARDED_BY(mutex_) = 0;

  // The driver's, all in launch order.
  Backlog backlogs_[2];         // not wholly launched, by lane
  std::deque<JobHandle> jobs_;  // launched, at least in part, or postponed
  // Receives from any rank without a message so far, and later ones of their tags.
  std::deque<JobHandle> postponed_;
  absl::Time earliest_deadline_ = absl::InfiniteFuture();
  size_t messages_in_flight_ = 0;   // of the users
  size_t launched_since_poll_ = 0;  // operations
  DueCallbacks callbacks_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_OPERATION_QUEUE_H_
