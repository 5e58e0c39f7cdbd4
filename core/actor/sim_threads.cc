#include "core/actor/sim_threads.h"

#include <ucontext.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/base/config.h"
#include "core/actor/promise.h"
#include "core/actor/thread_executor.h"
#include "core/base/check.h"

#if defined(ABSL_HAVE_ADDRESS_SANITIZER)
#include <sanitizer/common_interface_defs.h>
#endif

namespace pelton {
namespace {

// Longer than any wait of what a test runs; threads that look again and again do so until then.
constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr size_t kStackBytes = size_t{256} << 10;
// In how many pauses a thread goes on without another one's turn, by the seed: from a switch at
// each of them to long stretches, in which one side laps the other.
constexpr uint64_t kPausesPerSwitch[] = {1, 2, 4, 32};

}  // namespace

struct SimThreads::Thread {
  SimThreads* owner;
  Process* process;
  std::function<void()> body;
  std::unique_ptr<char[]> stack;
  ucontext_t here = {};
  ucontext_t back = {};  // who has let it go on
  // What it waits for; null: it could go on.
  const absl::FunctionRef<bool()>* done = nullptr;
  absl::Time deadline = absl::InfiniteFuture();
  bool is_dying = false;
  bool has_ended = false;
  internal::DroppedPromises* turn = nullptr;  // of an actor that it runs
  const ThreadExecutor* executor = nullptr;   // whose thread it is
  // Of the address sanitizer: the stack that it has come from.
  const void* bottom_of_back = nullptr;
  size_t size_of_back = 0;
};

SimThreads::SimThreads(SimExecutor& executor)
    : executor_(executor),
      pauses_per_switch_(kPausesPerSwitch[executor.Uniform(std::size(kPausesPerSwitch))]),
      previous_(WaitHook::Install(this)) {}

SimThreads::~SimThreads() {
  for (const std::unique_ptr<Thread>& thread : threads_) thread->process->is_dead = true;
  while (!threads_.empty()) {
    SwitchTo(*threads_.back());
    RemoveEnded();
  }
  WaitHook::Install(previous_);
}

void SimThreads::Start(Process& process, std::function<void()> body) {
  auto thread = std::make_unique<Thread>();
  thread->owner = this;
  thread->process = &process;
  thread->body = std::move(body);
  thread->stack.reset(new char[kStackBytes]);
  PELTON_CHECK(getcontext(&thread->here) == 0);
  thread->here.uc_stack.ss_sp = thread->stack.get();
  thread->here.uc_stack.ss_size = kStackBytes;
  const auto address = reinterpret_cast<uintptr_t>(thread.get());
  makecontext(&thread->here, reinterpret_cast<void (*)()>(&SimThreads::Enter), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  threads_.push_back(std::move(thread));
}

bool SimThreads::Run(std::function<void()> body) {
  PELTON_CHECK(current_ != nullptr) << "the test starts its threads by Start";
  Start(*current_->process, std::move(body));
  return true;
}

bool SimThreads::RunUntilAllEnd() {
  return WaitUntil([this] { return threads_.empty(); }, executor_.Now() + kPatience);
}

bool SimThreads::WaitUntil(absl::FunctionRef<bool()> done, absl::Time deadline) {
  if (current_ == nullptr) {
    while (!done()) {
      if (!Step(deadline)) return done();
    }
    return true;
  }
  Thread& self = *current_;
  Pause();
  // An actor's turn has caught it.
  if (self.is_dying && std::uncaught_exceptions() == 0) throw Killed();
  if (self.is_dying || done()) return done();
  self.done = &done;
  self.deadline = deadline;
  Yield(self);
  return done();
}

void SimThreads::Pause() {
  if (current_ == nullptr || current_->is_dying) return;
  Thread& self = *current_;
  Process& process = *self.process;
  if (++process.pauses == process.dies_at) {
    process.is_dead = true;
    if (process.on_death != nullptr) process.on_death();
    self.is_dying = true;
    throw Killed();
  }
  if (executor_.Uniform(pauses_per_switch_) == 0) Yield(self);
}

void SimThreads::Yield(Thread& thread) {
  SwitchBack(thread, /*is_last=*/false);
  thread.done = nullptr;
  if (!thread.process->is_dead || thread.is_dying) return;
  thread.is_dying = true;
  throw Killed();
}

bool SimThreads::CanGoOn(const Thread& thread) const {
  if (thread.done == nullptr || thread.process->is_dead) return true;
  return thread.deadline <= executor_.Now() || (*thread.done)();
}

bool SimThreads::Step(absl::Time deadline) {
  std::vector<Thread*> ready;
  for (const std::unique_ptr<Thread>& thread : threads_) {
    if (CanGoOn(*thread)) ready.push_back(thread.get());
  }
  const uint64_t choice = executor_.Uniform(ready.size() + 1);
  if (choice == ready.size()) {
    if (executor_.Step(executor_.Now())) return true;  // a turn, and no time
    if (ready.empty()) return PassTime(deadline);
  }
  SwitchTo(*ready[choice == ready.size() ? executor_.Uniform(ready.size()) : choice]);
  RemoveEnded();
  return true;
}

bool SimThreads::PassTime(absl::Time deadline) {
  absl::Time first = deadline;
  for (const std::unique_ptr<Thread>& thread : threads_) first = std::min(first, thread->deadline);
  if (executor_.Step(first)) return true;
  if (first == absl::InfiniteFuture()) return false;
  executor_.RunFor(first - executor_.Now());
  return first < deadline;
}

void SimThreads::RemoveEnded() {
  std::erase_if(threads_, [](const auto& thread) { return thread->has_ended; });
}

void SimThreads::SwitchTo(Thread& thread) {
  current_ = &thread;
  internal::DroppedPromises* const mine = internal::DroppedPromises::Swap(thread.turn);
  const ThreadExecutor* const my_executor = ThreadExecutor::SwapCurrent(thread.executor);
#if defined(ABSL_HAVE_ADDRESS_SANITIZER)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, thread.stack.get(), kStackBytes);
#endif
  PELTON_CHECK(swapcontext(&thread.back, &thread.here) == 0);
#if defined(ABSL_HAVE_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  thread.turn = internal::DroppedPromises::Swap(mine);
  thread.executor = ThreadExecutor::SwapCurrent(my_executor);
  current_ = nullptr;
}

void SimThreads::SwitchBack(Thread& thread, bool is_last) {
#if defined(ABSL_HAVE_ADDRESS_SANITIZER)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(is_last ? nullptr : &fake_stack, thread.bottom_of_back,
                                 thread.size_of_back);
#endif
  PELTON_CHECK(swapcontext(&thread.here, &thread.back) == 0);
#if defined(ABSL_HAVE_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(fake_stack, &thread.bottom_of_back, &thread.size_of_back);
#endif
}

void SimThreads::Enter(unsigned high, unsigned low) {
  auto& thread = *reinterpret_cast<Thread*>(uintptr_t{high} << 32 | low);
#if defined(ABSL_HAVE_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(nullptr, &thread.bottom_of_back, &thread.size_of_back);
#endif
  if (!thread.process->is_dead) RunBody(thread);
  thread.body = nullptr;
  thread.has_ended = true;
  thread.owner->SwitchBack(thread, /*is_last=*/true);
}

void SimThreads::RunBody(Thread& thread) {
  try {
    thread.body();
  } catch (const Killed&) {
  }
}

}  // namespace pelton
