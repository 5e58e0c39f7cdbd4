// A runner in virtual time, for tests of what drives one.
#ifndef PELTON_CORE_ROUND_SIM_RUNNER_H_
#define PELTON_CORE_ROUND_SIM_RUNNER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/actor/sim_executor.h"
#include "core/actor/thread_executor.h"
#include "core/actor/wait_hook.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"
#include "gtest/gtest.h"

namespace pelton {

constexpr absl::Duration kNever = absl::InfiniteDuration();

// Whether the thread that runs here is an executor's.
inline bool IsExecutors() {
  const ThreadExecutor* const executor = ThreadExecutor::SwapCurrent(nullptr);
  ThreadExecutor::SwapCurrent(executor);
  return executor != nullptr;
}

// A runner whose operations take as long as the test says. One thread at a time may be in it, but
// for Wake, Abort and Missing.
// Threads: those of the simulation. Owns: nothing.
class SimRunner final : public OperationRunner, public EventSource {
 public:
  explicit SimRunner(SimExecutor& sim) : sim_(sim) { sim_.AddEventSource(this); }
  ~SimRunner() override { sim_.RemoveEventSource(this); }

  std::function<absl::Duration()> next_takes;  // of the operation that is launched
  std::function<void(BucketId)> on_launch = [](BucketId) {};
  std::function<void()> on_slept_through = [] {};
  absl::Duration abort_takes;
  absl::Duration longest_park_after_abort = kNever;

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream&) override {
    const Inside inside(*this);
    if (!reason_.ok()) return reason_;
    on_launch(operation.bucket);
    const absl::Duration takes = next_takes();
    running_.insert(++launched_);
    if (takes != kNever) due_.emplace(sim_.Now() + takes, launched_);
    return Completion{launched_};
  }
  bool Progress() override {
    const Inside inside(*this);
    if (arrived_.empty()) return false;
    worst_delay_ = std::max(worst_delay_, sim_.Now() - arrived_at_);
    for (const uint64_t ticket : std::exchange(arrived_, {})) running_.erase(ticket);
    moved_at_ = sim_.Now();
    if (IsExecutors()) moved_by_executor_at_ = moved_at_;
    return true;
  }
  State Query(Completion completion) override {
    const Inside inside(*this);
    return running_.contains(completion.ticket) ? State{} : State{true, reason_};
  }
  void Park(absl::Time until) override {
    const Inside inside(*this);
    if (!reason_.ok()) until = std::min(until, sim_.Now() + longest_park_after_abort);
    WaitHook::Current()->WaitUntil([this] { return is_rung_; }, until);
    if (!std::exchange(is_rung_, false)) on_slept_through();
  }
  void Wake() override {
    Pause();
    is_rung_ = true;
  }
  void Abort(const absl::Status& reason) override {
    Pause();
    if (!reason_.ok()) return;
    reason_ = reason;
    due_.clear();
    for (const uint64_t ticket : running_) due_.emplace(sim_.Now() + abort_takes, ticket);
    is_rung_ = true;
  }
  std::vector<Rank> Missing() const override { return {Rank(1)}; }

  absl::Time NextEventTime() override {
    return due_.empty() ? absl::InfiniteFuture() : due_.begin()->first;
  }
  void RunDue(absl::Time now) override {
    for (; !due_.empty() && due_.begin()->first <= now; due_.erase(due_.begin())) {
      if (arrived_.empty()) arrived_at_ = now;
      arrived_.insert(due_.begin()->second);
    }
    is_rung_ = true;
  }

  size_t running() const { return running_.size(); }
  bool is_aborted() const { return !reason_.ok(); }
  // How late an operation's end was seen, at worst; when the last one was, by anybody or by the
  // executor's thread.
  absl::Duration worst_delay() const { return worst_delay_; }
  absl::Time moved_at() const { return moved_at_; }
  absl::Time moved_by_executor_at() const { return moved_by_executor_at_; }

 private:
  // One thread's call. Threads: the one that made it. Owns: its being the only one.
  struct Inside {
    explicit Inside(SimRunner& runner) : runner(runner) {
      EXPECT_FALSE(std::exchange(runner.is_used_, true)) << "two threads drive";
      Pause();
    }
    ~Inside() { runner.is_used_ = false; }
    SimRunner& runner;
  };
  static void Pause() { WaitHook::Current()->Pause(); }

  SimExecutor& sim_;
  uint64_t launched_ = 0;
  std::set<uint64_t> running_, arrived_;
  std::multimap<absl::Time, uint64_t> due_;
  absl::Status reason_;
  bool is_rung_ = false;
  bool is_used_ = false;
  absl::Time arrived_at_;
  absl::Time moved_at_ = absl::InfinitePast();
  absl::Time moved_by_executor_at_ = absl::InfinitePast();
  absl::Duration worst_delay_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_SIM_RUNNER_H_
