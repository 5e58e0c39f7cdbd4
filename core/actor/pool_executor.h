// A pool of pool thread threads for many actors.
#ifndef PELTON_CORE_ACTOR_POOL_EXECUTOR_H_
#define PELTON_CORE_ACTOR_POOL_EXECUTOR_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/actor/actor_cell.h"
#include "core/actor/backoff.h"
#include "core/actor/executor_base.h"
#include "core/actor/waker.h"
#include "core/base/sync.h"

namespace pelton {

// Runs its actors on `thread_count` pool threads that share one queue. An actor that becomes
// runnable in a turn on a pool thread goes to that pool thread's LIFO place and runs next, with its
// message still in the cache; no other pool thread takes it from there, so turns must be short.
// Chains of that kind give way to the queue after a while. Actors with work in flight are polled in
// turn; when no poll moves, a pool thread spins, yields and then parks for at most their MaxPark. A
// wake-up is sent only if no pool thread is looking for work already. Threads: any. Owns: its pool
// threads.
class PoolExecutor final : public internal::ExecutorBase {
 public:
  struct Options {
    int thread_count = 1;
    // Shown by debuggers; at most 12 characters, a number is added.
    std::string name = "pelton-pool";
    // Turns may take as long as they like, and may wait for other actors of the pool. So that no
    // turn waits for another one's end, each living actor has a thread: one more starts whenever
    // an actor is spawned for which there is none. These threads rest nearly always, so they are
    // not counted among those that stop spinning when they outnumber the cores.
    bool turns_may_block = false;
  };

  explicit PoolExecutor(Options options);
  explicit PoolExecutor(int thread_count) : PoolExecutor(Options{.thread_count = thread_count}) {}
  // Shuts down within limits::kStopTimeout, if Shutdown was not called.
  ~PoolExecutor() override;
  // Ends `pool`. Where a turn that blocks does not end by `deadline`, or is the caller's own, the
  // pool and what that turn works on stay until the process ends, because nothing ends a turn.
  // Blocks: until `deadline`, and a second. Errors: DeadlineExceeded: it stays; names an actor.
  static absl::Status EndOrLeave(std::unique_ptr<PoolExecutor> pool, absl::Time deadline);

  void Schedule(internal::ActorCell& cell) override;
  void OnSpawn(internal::ActorCell& cell) override;
  // Makes a parked pool thread poll at once: for events from outside.
  void Kick();
  // Number of pool threads that are parked and not kicked.
  size_t parked_count() const;
  size_t thread_count() const;

 private:
  struct Polled {
    internal::RefPtr<internal::ActorCell> cell;
    absl::Duration max_park = absl::ZeroDuration();
  };
  struct PoolThread {
    PoolExecutor* pool = nullptr;
    Waker waker;
    internal::ActorCell* lifo = nullptr;
    int chain = 0;       // turns in a row that came from the LIFO place
    int idle_polls = 0;  // in a row
    Backoff poll_backoff;
    uint32_t turns = 0;
    std::thread thread;
  };

  void AddThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(adding_);
  void Run(PoolThread& pool_thread);
  internal::ActorCell* NextRunnable(PoolThread& pool_thread);
  internal::ActorCell* TakeFromQueue();
  void RunTurn(PoolThread& pool_thread, internal::ActorCell& cell);
  // Polls one of the actors with work in flight, if any is not known to be idle.
  bool PollNext(PoolThread& pool_thread);
  bool RunTimers();
  // Looks for work until there is some, spinning, yielding and parking.
  void WaitForWork(PoolThread& pool_thread);
  bool LooksIdle() const { return queued_.load(std::memory_order_relaxed) == 0; }
  void Park(PoolThread& pool_thread);
  void Enqueue(internal::ActorCell& cell);
  // After its turn has been released, or scheduled again.
  void PollLater(Polled polled);
  // The pool thread to kick because there is work in the queue, or null.
  PoolThread* TakeParked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnEarlierTimer() override { Kick(); }

  static constinit thread_local PoolThread* current_thread_;

  const Options options_;
  mutable Mutex adding_;  // taken before mutex_
  std::vector<std::unique_ptr<PoolThread>> threads_ ABSL_GUARDED_BY(adding_);
  std::atomic<bool> exit_{false};
  std::atomic<size_t> queued_{0};  // in queue_, for those who look without the lock
  mutable Mutex mutex_;
  internal::CellQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::deque<Polled> polled_ ABSL_GUARDED_BY(mutex_);
  std::vector<PoolThread*> parked_ ABSL_GUARDED_BY(mutex_);
  int searching_ ABSL_GUARDED_BY(mutex_) = 0;  // pool threads awake that look for work
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_POOL_EXECUTOR_H_
