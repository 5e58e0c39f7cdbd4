// Futures of several futures.
#ifndef PELTON_CORE_ACTOR_WHEN_H_
#define PELTON_CORE_ACTOR_WHEN_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/actor/promise.h"
#include "core/actor/ref_ptr.h"
#include "core/base/check.h"

namespace pelton {

// What WhenAll yields: the values in the order of the futures; nothing for futures of void.
template <typename T>
using AllOf = std::conditional_t<std::is_void_v<T>, void,
                                 std::vector<std::conditional_t<std::is_void_v<T>, char, T>>>;

// What WhenAny yields: the result that was there first, and whose it is.
template <typename T>
struct AnyOf {
  size_t index;
  Result<T> result;
};

namespace internal {

struct FutureAccess {
  template <typename T>
  static RefPtr<FutureState<T>> Take(Future<T>& future) {
    PELTON_CHECK(future.valid()) << "a future that was consumed cannot be waited for";
    return std::exchange(future.state_, {});
  }
  template <typename T>
  static RefPtr<FutureState<T>> Share(const Future<T>& future) {
    return future.state_;
  }
};

// What waits for several futures and completes one. `Rule` decides by each result.
// Threads: any. Owns: the futures' states, shared with their continuations.
template <typename T, typename Out, typename Rule>
class Gathering {
 public:
  static Future<Out> Begin(std::vector<Future<T>> futures) {
    auto [promise, future] = MakePromise<Out>();
    auto whole = std::make_shared<Gathering>(std::move(futures), FutureAccess::Share(future),
                                             std::move(promise));
    for (size_t i = 0; i < whole->parts_.size(); ++i) {
      whole->parts_[i]->core().SetContinuation(&Part::Run, new Part{whole, i});
    }
    return std::move(future);
  }

  Gathering(std::vector<Future<T>> futures, RefPtr<FutureState<Out>> out, Promise<Out> promise)
      : out_(std::move(out)), promise_(std::move(promise)), rule_(futures.size()) {
    for (Future<T>& future : futures) parts_.push_back(FutureAccess::Take(future));
  }

 private:
  struct Part {
    std::shared_ptr<Gathering> whole;
    size_t index;
    static void Run(void* argument) {
      const std::unique_ptr<Part> part(static_cast<Part*>(argument));
      part->whole->Take(part->index);
    }
  };

  void Take(size_t index) {
    std::optional<Result<Out>> result = rule_.Add(index, parts_[index]->TakeResult());
    if (!result.has_value() && out_->core().abandoned()) {
      result.emplace(absl::CancelledError("nobody waits for it any more"));
    }
    // The first thread that has a result completes the future; it alone touches the promise.
    if (!result.has_value() || is_complete_.exchange(true)) return;
    // Whoever still works for another part may stop.
    for (const auto& part : parts_) part->core().Abandon();
    promise_.Set(*std::move(result));
  }

  std::vector<RefPtr<FutureState<T>>> parts_;
  const RefPtr<FutureState<Out>> out_;
  std::atomic<bool> is_complete_{false};
  Promise<Out> promise_;
  Rule rule_;
};

// All values, or the first error.
// Threads: Add by any, once for each index. Owns: the values.
template <typename T>
class AllRule {
 public:
  explicit AllRule(size_t count) : left_(count), values_(count) {}

  std::optional<Result<AllOf<T>>> Add(size_t index, Result<T> result) {
    if constexpr (std::is_void_v<T>) {
      if (!result.ok()) return result;
    } else {
      if (!result.ok()) return result.status();
      values_[index].emplace(*std::move(result));
    }
    // Whoever counts to the end sees what the others have written.
    if (left_.fetch_sub(1, std::memory_order_acq_rel) > 1) return std::nullopt;
    if constexpr (std::is_void_v<T>) {
      return absl::OkStatus();
    } else {
      AllOf<T> all;
      for (auto& value : values_) all.push_back(*std::move(value));
      return all;
    }
  }

 private:
  std::atomic<size_t> left_;
  std::vector<std::optional<std::conditional_t<std::is_void_v<T>, char, T>>> values_;
};

// Threads: any. Owns: nothing.
template <typename T>
class AnyRule {
 public:
  explicit AnyRule(size_t) {}
  std::optional<Result<AnyOf<T>>> Add(size_t index, Result<T> result) {
    return AnyOf<T>{index, std::move(result)};
  }
};

}  // namespace internal

// Complete with all values when all `futures` are, or with the first error at once: the others are
// then cancelled, as if they had been dropped. So are they once the result's future is dropped and
// one of them completes. Their deadlines count no more: give one to the result.
// Threads: any. Blocks: never.
template <typename T>
Future<AllOf<T>> WhenAll(std::vector<Future<T>> futures) {
  if (futures.empty()) {
    if constexpr (std::is_void_v<T>) {
      return Future<void>::Completed(absl::OkStatus());
    } else {
      return Future<AllOf<T>>::Completed(AllOf<T>());
    }
  }
  return internal::Gathering<T, AllOf<T>, internal::AllRule<T>>::Begin(std::move(futures));
}

// Complete with the first result, an error too; the others are then cancelled.
// Threads: any. Blocks: never.
template <typename T>
Future<AnyOf<T>> WhenAny(std::vector<Future<T>> futures) {
  PELTON_CHECK(!futures.empty()) << "none of no futures will ever be complete";
  return internal::Gathering<T, AnyOf<T>, internal::AnyRule<T>>::Begin(std::move(futures));
}

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_WHEN_H_
