// How callers share a communicator: jobs in the order of their calls, on the thread that waits. Who
// has one for itself calls Await (comm/await.h); docs/architecture.md says why there are both.
#ifndef PELTON_COMM_LANE_LANE_H_
#define PELTON_COMM_LANE_LANE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/await.h"
#include "comm/communicator.h"
#include "comm/lane/job.h"
#include "comm/lane/job_queue.h"
#include "core/actor/backoff.h"
#include "core/actor/waker.h"
#include "core/base/moving_deadline.h"
#include "core/base/sync.h"

namespace pelton::lane {

class Visit;

// One thread at a time *drives*: it launches, makes progress and finishes jobs. A caller that waits
// drives by itself, so that a small operation costs no hop to another thread; a thread of the
// lane's drives while nobody waits. No lock is held while closures run or die: they may need
// Python's lock. A callback may wait for a future that a later job's callback completes (PyTorch's
// PowerSGD hook does), and a large copy at a job's end takes longer than many operations, so
// whoever calls one of these does not drive meanwhile, and another thread does.
//
// What each of the threads does is a Visit, which also says why no wake-up is lost.
// Threads: any. Owns: the communicator; its threads until Stop.
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  // Has something take the steps of a Visit that attends, as a thread of the lane's does.
  using StartAttendant = absl::AnyInvocable<void(Lane&)>;

  // Shared: work objects borrow the lane while they wait; the communicator brings its backend
  // along. Whoever creates a lane calls Stop. `start` null: a thread attends.
  // `standstill`: for how long jobs' deadlines do not come nearer; it lives as long as the
  // communicator. Null: they always do.
  static std::shared_ptr<Lane> Create(std::shared_ptr<Communicator> communicator,
                                      StartAttendant start = nullptr,
                                      const Standstill* standstill = nullptr);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Blocks: never for long.
  JobHandle Enqueue(Job job);
  // The same, and waits for its end. Blocks: until done, at most until the job's deadline.
  JobHandle Run(Job job);
  // Whether `job` is done. Blocks: until it is, or `deadline`; the job goes on after that.
  bool Wait(const JobHandle& job, absl::Time deadline);
  // Calls `callback` once with the job's status, after its end; here and now if that has come. One
  // callback per job.
  void OnDone(const JobHandle& job, JobState::Callback callback);
  // Runs `call` on this thread, with the communicator for itself once all earlier jobs have ended.
  // Blocks: at most `timeout` for the lane to be free, and as `call`. Errors: FailedPrecondition:
  // the lane was stopped; DeadlineExceeded: another call has kept it; InterruptedError; those of
  // `call`.
  absl::Status Borrow(absl::Duration timeout, absl::FunctionRef<absl::Status(Communicator&)> call);

  // Ends everything in flight, and all that comes, with `reason`, on every rank. Blocks: never.
  void Abort(const absl::Status& reason) { communicator_->Abort(reason); }
  // Ends the lane's threads and refuses later jobs; what is in flight is aborted. Idempotent.
  // Blocks: until nobody uses the jobs' memory any more, limits::kStopTimeout at most.
  void Stop();

  // Number of jobs given so far.
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  friend class Visit;
  struct Role;
  // What its driver calls once it drives no more: finishes that last, and then callbacks.
  struct Due {
    bool empty() const { return unfinished.empty() && callbacks.empty(); }
    std::vector<JobHandle> unfinished;
    std::vector<std::pair<JobState::Callback, JobHandle>> callbacks;
  };

  Lane(std::shared_ptr<Communicator> communicator, StartAttendant start,
       const Standstill* standstill);

  bool TakeIfFree();
  absl::Status TakeWhenFree(absl::Duration timeout);
  JobHandle Add(Job job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitFor(const JobHandle& job, absl::Time deadline);
  // Takes the steps of `visit` to its end, on this thread.
  void Follow(Visit& visit);
  void Sleep(Visit& visit, bool on_wire);

  // The driver's; the mutex is not held. Adds what is due.
  void AdvanceJobs(Due& due);
  void LookFor(const JobState& job, Due& due);
  // Of a thread that does not drive. `drives_next`: it asks for the role when this returns.
  void Call(Due due, bool drives_next);

  void MarkDone(const JobHandle& job, Due& due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes one that will drive, if nobody drives and somebody should.
  void PassOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CallAttendant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Communicator> communicator_;  // shared: see Create
  StartAttendant start_attendant_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> has_incoming_{false};
  std::atomic<bool> is_wanted_{false};  // somebody waits: an attendant that drives shall stop

  Mutex mutex_;
  std::vector<JobHandle> incoming_ ABSL_GUARDED_BY(mutex_);
  bool driven_ ABSL_GUARDED_BY(mutex_) = false;
  bool driven_by_attendant_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t finishing_ ABSL_GUARDED_BY(mutex_) = 0;        // of these, by threads that do not drive
  std::vector<Visit*> waiting_ ABSL_GUARDED_BY(mutex_);  // that stand by, in their order
  std::vector<Visit*> attendants_ ABSL_GUARDED_BY(mutex_);    // the same of the lane's threads
  bool attendant_is_called_ ABSL_GUARDED_BY(mutex_) = false;  // and has not looked yet
  // The first thread is started for the first job that no thread of the user waits for, and a
  // further one where callbacks that block hold all the threads that were started before.
  static constexpr size_t kMostThreads = 16;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);

  // The driver's.
  JobQueue jobs_;
  std::vector<JobHandle> taken_;
  std::vector<JobHandle> ended_;
};

// A thread that waits at a lane drives it if nobody else does, and stands by otherwise. A Visit
// takes those decisions and waits for nothing itself, so that a test runs the same decisions in
// virtual time and in every order.
//
// No wake-up is lost, because of three things.
// 1. Who drives, who stands by and which jobs have ended changes under the lane's mutex only, and
//    whoever stands by has looked at all of it under the same lock. A kick that comes between that
//    look and the sleep ends the sleep at once (core/actor/waker.h).
// 2. Whoever stops driving kicks one that stands by and whose job goes on, or else an attendant if
//    a job is neither done nor at its finish. A visit that was kicked and does not drive in the end
//    passes the kick on. Whoever has called a finish drives next, or wakes whoever drives, which
//    then ends that job.
// 3. What comes in while somebody drives is shown before the communicator's Wake, which ends the
//    park that has begun or is about to. Whoever drives looks for it before each park.
// Threads: the one that takes the steps. Owns: the driver's role, while it has it.
class Visit {
 public:
  enum class Aim : uint8_t {
    kJob,     // until its job has ended
    kIdle,    // until it drives and all jobs have ended; then the role is its owner's
    kClose,   // the same of a lane that was stopped
    kAttend,  // drives while there are jobs that nobody waits for, until the lane is stopped
  };
  // What the thread is to do before the next step.
  enum class Next : uint8_t {
    kGoOn,
    kYield,    // gives its core away
    kPark,     // sleeps on the communicator, at most until until()
    kStandBy,  // sleeps until Kick, at most until until()
    kCall,     // calls Call
    kEnd,
  };

  Visit(Lane& lane, Aim aim, absl::Time deadline, JobHandle job = nullptr);
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  virtual ~Visit();

  Next Step() { return drives_ ? Drive() : Join(); }
  absl::Time until() const { return until_; }
  // Calls what is due. Blocks: as the jobs' closures, and the callbacks.
  void Call() { lane_.Call(std::exchange(due_, {}), /*drives_next=*/true); }

  bool drives() const { return drives_; }
  const absl::Status& interrupted() const { return attended_.interrupted(); }

 protected:
  // Ends the sleep of a visit that stands by, also one that is about to begin. Threads: any.
  virtual void Kick() { waker_.Kick(); }

 private:
  friend class Lane;

  Next Join();
  Next StandBy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_.mutex_);
  void StandByNoMore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_.mutex_);
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_.mutex_);
  bool MayDrive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_.mutex_);
  Next Drive();
  Next Leave(Next next);
  bool IsJobDone() const { return job_ != nullptr && job_->done(); }
  bool WaitsForIdle() const { return aim_ == Aim::kIdle || aim_ == Aim::kClose; }
  // Looks at the clock, and whether the thread was interrupted: true if so, the first time.
  bool LookUp(absl::Time now);

  Lane& lane_;
  const Aim aim_;
  const absl::Time deadline_;
  const JobHandle job_;
  AttendedWait attended_;
  Backoff backoff_;
  Waker waker_;
  bool drives_ = false;
  bool stands_by_ = false;
  bool is_late_ = false;
  absl::Time until_ = absl::InfinitePast();
  Lane::Due due_;
};

}  // namespace pelton::lane

#endif  // PELTON_COMM_LANE_LANE_H_
