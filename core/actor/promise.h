// One-shot promise and future: a result that one side owes and the other may wait for.
#ifndef PELTON_CORE_ACTOR_PROMISE_H_
#define PELTON_CORE_ACTOR_PROMISE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/actor/backoff.h"
#include "core/actor/block_pool.h"
#include "core/actor/ref_ptr.h"
#include "core/actor/sendable.h"
#include "core/actor/sync_policy.h"
#include "core/actor/wait_hook.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/sync.h"

namespace pelton::internal {

// Lives for as long as a turn, and keeps the promises that are dropped meanwhile until it is known
// why. A handler that throws drops what it owes before anybody has caught what it has thrown.
// Threads: the one that made it. Owns: a count on the state of each of them.
class DroppedPromises {
 public:
  // Completes the future behind `state` with kAborted, and takes over the count on it.
  using Complete = void (*)(void* state, absl::string_view why);
  static constexpr absl::string_view kUnexplained = "the promise was dropped without a result";

  DroppedPromises() : outer_(Swap(this)) {}
  ~DroppedPromises() {
    Answer(kUnexplained);
    Swap(outer_);
  }
  DroppedPromises(const DroppedPromises&) = delete;
  DroppedPromises& operator=(const DroppedPromises&) = delete;

  // Those of this thread's turn; null where it is in none.
  static DroppedPromises* Current() { return current_; }
  // For threads of a simulation, which share a real one: the former ones.
  static DroppedPromises* Swap(DroppedPromises* mine) {
    DroppedPromises* const former = current_;
    current_ = mine;
    return former;
  }

  bool empty() const { return dropped_.empty(); }
  void Add(void* state, Complete complete) { dropped_.push_back({state, complete}); }
  void Answer(absl::string_view why) {
    // By index: an answer may have what waited for it drop more.
    for (size_t i = 0; i < dropped_.size(); ++i) dropped_[i].complete(dropped_[i].state, why);
    dropped_.clear();
  }

 private:
  struct Dropped {
    void* state;
    Complete complete;
  };

  static inline constinit thread_local DroppedPromises* current_ = nullptr;
  DroppedPromises* const outer_;
  absl::InlinedVector<Dropped, 2> dropped_;
};

// What futures of all types share: one word that says how far a completion has come.
// ONCE-1: Claim succeeds for one completer only; it then writes the result and calls Finish.
//
// Finish and whoever waits each change the word in one step and see what the other did before: who
// comes second acts for both, so no sleeper and no continuation is forgotten, and none is run
// twice. Threads: any. Owns: nothing; the typed state around it owns the result.
template <typename Sync>
class BasicFutureCore {
 public:
  using Continuation = void (*)(void* argument);

  // True for the first caller.
  bool Claim() { return (word_.fetch_or(kClaimed, std::memory_order_relaxed) & kClaimed) == 0; }
  // Publishes the result: wakes the thread that waits and runs the continuation.
  void Finish() {
    const uint32_t before = word_.fetch_or(kReady, std::memory_order_acq_rel);
    if ((before & kParked) != 0) Sync::Wake(&word_, kAllSleepers, FutexScope::kProcess);
    // Either this sees the continuation or SetContinuation sees the result, never both.
    if ((before & kContinued) != 0) continuation_(argument_);
  }
  bool ready() const { return (word_.load(std::memory_order_acquire) & kReady) != 0; }

  // The future is gone: nobody will look at the result.
  void Abandon() { word_.fetch_or(kAbandoned, std::memory_order_relaxed); }
  bool abandoned() const { return (word_.load(std::memory_order_relaxed) & kAbandoned) != 0; }

  // Has `run(argument)` called once the result is there, by whoever completes it; at once if it
  // is there. At most one continuation per future.
  void SetContinuation(Continuation run, void* argument) {
    continuation_ = run;
    argument_ = argument;
    const uint32_t before = word_.fetch_or(kContinued, std::memory_order_acq_rel);
    if ((before & kReady) != 0) run(argument);
  }

  // Sleeps until the result is there, `at_most` passed, or for no reason; whether it is there.
  // Blocks: at most `at_most`.
  bool Park(absl::Duration at_most) {
    const uint32_t word = word_.fetch_or(kParked, std::memory_order_acq_rel) | kParked;
    if ((word & kReady) == 0) Sync::Wait(&word_, word, at_most, FutexScope::kProcess);
    return ready();
  }

 private:
  static constexpr uint32_t kClaimed = 1;
  static constexpr uint32_t kReady = 2;
  static constexpr uint32_t kParked = 4;
  static constexpr uint32_t kContinued = 8;
  static constexpr uint32_t kAbandoned = 16;

  typename Sync::template Atomic<uint32_t> word_{0};
  Continuation continuation_ = nullptr;
  void* argument_ = nullptr;
};

// With the waits of this machine.
// Threads: any. Owns: nothing.
class FutureCore : public BasicFutureCore<RealSync> {
 public:
  // True if the result is there; false if `deadline` (of WaitClock) passed.
  // Blocks: until `deadline`. Spins and yields a little before it parks.
  bool WaitUntil(absl::Time deadline);
};

inline bool FutureCore::WaitUntil(absl::Time deadline) {
  if (ready()) return true;
  if (WaitHook* hook = WaitHook::Current(); hook != nullptr) {
    return hook->WaitUntil([this] { return ready(); }, deadline);
  }
  Backoff backoff;
  while (backoff.Pause()) {
    if (ready()) return true;
  }
  for (;;) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return ready();
    if (Park(left)) return true;
  }
}

}  // namespace pelton::internal

namespace pelton {

// What a future of T yields: StatusOr<T>, or Status for void.
template <typename T>
using Result = std::conditional_t<std::is_void_v<T>, absl::Status,
                                  absl::StatusOr<std::conditional_t<std::is_void_v<T>, char, T>>>;

namespace internal {

struct FutureAccess;  // when.h

// Shared by a promise, its future and, while an actor waits with a deadline, a timer. From the
// pool.
// Threads: any, by the rules of FutureCore. Owns: the result until it is taken.
template <typename T>
class FutureState {
 public:
  static RefPtr<FutureState> Make() {
    return RefPtr<FutureState>::Adopt(new (BlockPool::Allocate(sizeof(FutureState))) FutureState);
  }

  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    this->~FutureState();
    BlockPool::Free(this, sizeof(FutureState));
  }

  // ONCE-1: false, and no effect, if a result is there already.
  bool TryComplete(Result<T> result) {
    if (!core_.Claim()) return false;
    result_.emplace(std::move(result));
    core_.Finish();
    return true;
  }
  // See DroppedPromises::Complete.
  static void CompleteDropped(void* state, absl::string_view why) {
    RefPtr<FutureState>::Adopt(static_cast<FutureState*>(state))
        ->TryComplete(absl::AbortedError(why));
  }
  // Once ready, at most once.
  Result<T> TakeResult() { return *std::move(result_); }
  FutureCore& core() { return core_; }

 private:
  FutureState() = default;
  ~FutureState() = default;

  FutureCore core_;
  std::atomic<uint32_t> refs_{1};
  std::optional<Result<T>> result_;
};

}  // namespace internal

// The side that waits. Dropping it cancels: the promise sees cancelled().
// Threads: any, one at a time. Owns: its half of the completion.
template <typename T>
class [[nodiscard]] Future {
 public:
  Future() = default;
  Future(Future&&) noexcept = default;
  Future& operator=(Future&& other) noexcept {
    Drop();
    state_ = std::move(other.state_);
    deadline_ = other.deadline_;
    return *this;
  }
  ~Future() { Drop(); }

  // A future that is complete from the start.
  static Future Completed(Result<T> result) {
    auto state = internal::FutureState<T>::Make();
    state->TryComplete(std::move(result));
    return Future(std::move(state), absl::InfiniteFuture());
  }

  // Whether it was given a promise and not consumed yet.
  bool valid() const { return static_cast<bool>(state_); }
  bool ready() const { return state_->core().ready(); }
  // By when an answer was asked for; infinite unless Ask or WithDeadline set it.
  absl::Time deadline() const { return deadline_; }
  Future WithDeadline(absl::Time deadline) && {
    deadline_ = deadline;
    return std::move(*this);
  }

  // Waits, without consuming; true if the result is there.
  // Blocks: until `deadline` (of WaitClock). Not to be called in a turn: see Context::Then.
  bool WaitUntil(absl::Time deadline) const { return state_->core().WaitUntil(deadline); }

  // Waits and consumes; a future whose time is up is dropped.
  // Blocks: until the earlier of `deadline` and deadline(). Not to be called in a turn.
  // Errors: kDeadlineExceeded: no result in time; else what the promise was given.
  Result<T> Await(absl::Time deadline) && {
    deadline = std::min(deadline, deadline_);
    if (!WaitUntil(deadline)) {
      // The last look: after it the result belongs to nobody.
      Future expired = std::move(*this);
      if (!expired.ready()) {
        return absl::DeadlineExceededError(
            absl::StrCat("no answer by ", absl::FormatTime(deadline)));
      }
      return expired.TakeResult();
    }
    return TakeResult();
  }
  // The result of a future that is ready; consumes it.
  Result<T> Take() && {
    PELTON_CHECK(ready()) << "Take() of a future that is not ready";
    return TakeResult();
  }

 private:
  template <typename U>
  friend class Promise;
  friend class Context;
  friend struct internal::FutureAccess;
  template <typename U>
  friend struct PromiseAndFuture;

  Future(internal::RefPtr<internal::FutureState<T>> state, absl::Time deadline)
      : state_(std::move(state)), deadline_(deadline) {}
  void Drop() {
    if (!state_) return;
    state_->core().Abandon();
    state_ = {};
  }
  Result<T> TakeResult() { return std::exchange(state_, {})->TakeResult(); }

  internal::RefPtr<internal::FutureState<T>> state_;
  absl::Time deadline_ = absl::InfiniteFuture();
};

// The side that owes. Completes its future exactly once (ONCE-1): with what it is given, or, when
// dropped without, with kAborted, which says why the actor has ended that has dropped it in its
// last turn.
// Threads: any, one at a time. Owns: its half of the completion.
template <typename T>
class [[nodiscard]] Promise {
 public:
  using value_type = T;
  // Owes nothing.
  Promise() = default;
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    Drop();
    state_ = std::move(other.state_);
    return *this;
  }
  ~Promise() { Drop(); }

  bool valid() const { return static_cast<bool>(state_); }
  // Whether the future is gone, or its deadline passed in an actor: the work may be skipped.
  bool cancelled() const { return state_->core().abandoned(); }

  // Completes the future; the promise owes nothing any more. A result nobody waits for is dropped.
  // Blocks: never.
  void Set(Result<T> result) { std::exchange(state_, {})->TryComplete(std::move(result)); }

 private:
  template <typename U>
  friend struct PromiseAndFuture;

  explicit Promise(internal::RefPtr<internal::FutureState<T>> state) : state_(std::move(state)) {}
  void Drop() {
    if (!state_) return;
    using internal::DroppedPromises;
    constexpr DroppedPromises::Complete kComplete = &internal::FutureState<T>::CompleteDropped;
    if (DroppedPromises* const turn = DroppedPromises::Current(); turn != nullptr) {
      return turn->Add(state_.release(), kComplete);
    }
    kComplete(state_.release(), DroppedPromises::kUnexplained);
  }

  internal::RefPtr<internal::FutureState<T>> state_;
};

template <typename T>
struct PromiseAndFuture {
  Promise<T> promise;
  Future<T> future;

  static PromiseAndFuture Make(absl::Time deadline = absl::InfiniteFuture()) {
    auto state = internal::FutureState<T>::Make();
    return {Promise<T>(state), Future<T>(std::move(state), deadline)};
  }
};

// auto [promise, future] = MakePromise<int>();
template <typename T>
PromiseAndFuture<T> MakePromise(absl::Time deadline = absl::InfiniteFuture()) {
  return PromiseAndFuture<T>::Make(deadline);
}

namespace internal {
template <typename T>
struct SendableRule<Promise<T>> : SendableParts<T> {};
template <>
struct SendableRule<Promise<void>> : SendableParts<> {};
template <typename T>
struct SendableRule<Future<T>> : SendableParts<T> {};
template <>
struct SendableRule<Future<void>> : SendableParts<> {};
}  // namespace internal

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_PROMISE_H_
