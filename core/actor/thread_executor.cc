#include "core/actor/thread_executor.h"

#include <utility>

#include "core/actor/wait_hook.h"
#include "core/base/limits.h"

namespace pelton {
namespace {

constinit thread_local const ThreadExecutor* current_executor = nullptr;

Waker MakeWaker(internal::RealSync::Atomic<uint32_t>* word) {
  return word == nullptr ? Waker() : Waker(word);
}

}  // namespace

ThreadExecutor::ThreadExecutor() : ThreadExecutor(Options{}) {}

ThreadExecutor::ThreadExecutor(Options options)
    : clock_(WaitHook::MayBlock() ? WaitClock() : Clock::Real()),
      options_(std::move(options)),
      waker_(MakeWaker(options_.waker_word)),
      loop_(timers(), clock_) {
  if (options_.is_counted) counted_.emplace();
  thread_ = SideThread([this] { Run(); }, options_.name);
}

ThreadExecutor::~ThreadExecutor() {
  // What does not end in time is ended by force below.
  Shutdown(clock().Now() + limits::kStopTimeout).IgnoreError();
  exit_.store(true, std::memory_order_release);
  waker_.Kick();
  thread_.Join();
  KillAll();
  senders().AwaitNone();
}

void ThreadExecutor::Schedule(internal::ActorCell& cell) {
  if (current_executor == this) return loop_.Push(cell);
  // From the push on the actor may run, end and let the executor end, before the kick.
  const internal::Passage passage(senders());
  if (loop_.PushFromOutside(cell)) waker_.Kick();
}

const ThreadExecutor* ThreadExecutor::SwapCurrent(const ThreadExecutor* mine) {
  return std::exchange(current_executor, mine);
}

bool ThreadExecutor::WaitUntilEmpty(absl::Time deadline) {
  WaitHook* const hook = WaitHook::Current();
  if (!thread_.is_simulated() || hook == nullptr) return ExecutorBase::WaitUntilEmpty(deadline);
  return hook->WaitUntil([this] { return actor_count() == 0; }, deadline);
}

void ThreadExecutor::Run() {
  current_executor = this;
  Backoff backoff;
  while (!exit_.load(std::memory_order_acquire)) {
    if (loop_.RunOnce()) {
      backoff.Reset();
      continue;
    }
    // Whoever makes polled work move on may need this core; a message comes with a wake-up.
    const bool paused = loop_.has_work_in_flight() ? backoff.Pause() : backoff.Spin();
    if (!paused && !loop_.DeliverDueTimers()) Park();
  }
  current_executor = nullptr;
}

void ThreadExecutor::Park() {
  const absl::Duration at_most = loop_.LongestPark();
  if (loop_.has_work_in_flight() && options_.park != nullptr) {
    options_.park(waker_, at_most);
  } else {
    waker_.Park(at_most);
  }
}

}  // namespace pelton
