#include "core/base/long_wait.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/check.h"

namespace pelton {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kInterruptUrl[] = "pelton/interrupted";
constexpr absl::Duration kFirstReport = absl::Seconds(30);
constexpr absl::Duration kUninterruptedSlice = absl::Seconds(1);

std::atomic<InterruptCheck> installed_check{nullptr};
std::atomic<int64_t> check_interval_ns{absl::ToInt64Nanoseconds(kInterruptInterval)};
std::atomic<int64_t> stall_interval_ns{absl::ToInt64Nanoseconds(kFirstReport)};

thread_local SteadyClock::time_point next_check;
thread_local const CallName* current_call = nullptr;

}  // namespace

void SetInterruptCheck(InterruptCheck check, absl::Duration interval) {
  check_interval_ns.store(absl::ToInt64Nanoseconds(interval));
  installed_check.store(check);
}

bool InterruptIsDue() {
  return installed_check.load(std::memory_order_relaxed) != nullptr &&
         SteadyClock::now() >= next_check;
}

absl::Status CheckInterrupt() {
  const InterruptCheck check = installed_check.load(std::memory_order_relaxed);
  if (check == nullptr) return absl::OkStatus();
  const SteadyClock::time_point now = SteadyClock::now();
  if (now < next_check) return absl::OkStatus();
  next_check = now + std::chrono::nanoseconds(check_interval_ns.load(std::memory_order_relaxed));
  return check();
}

absl::Duration InterruptSlice() {
  const bool is_installed = installed_check.load(std::memory_order_relaxed) != nullptr;
  return is_installed ? kInterruptInterval : kUninterruptedSlice;
}

absl::Status InterruptedError(absl::string_view text) {
  absl::Status status = absl::CancelledError(text);
  status.SetPayload(kInterruptUrl, absl::Cord());
  return status;
}

bool IsInterrupted(const absl::Status& status) {
  return status.GetPayload(kInterruptUrl).has_value();
}

absl::Status AsAbort(const absl::Status& status) { return absl::AbortedError(status.message()); }

CallName::CallName(absl::string_view call, absl::string_view group)
    : call_(call), group_(group), outer_(std::exchange(current_call, this)) {}

CallName::~CallName() { current_call = outer_; }

std::string CallName::ToString() const {
  return group_.empty() ? std::string(call_) : absl::StrCat(call_, " of group '", group_, "'");
}

std::string CallName::Current() { return current_call == nullptr ? "" : current_call->ToString(); }

void SetStallInterval(absl::Duration interval) {
  stall_interval_ns.store(absl::ToInt64Nanoseconds(interval));
}

void StallReport::Look(absl::Time since, absl::Time now,
                       absl::FunctionRef<std::string(absl::string_view)> describe) {
  const absl::Duration first = absl::Nanoseconds(stall_interval_ns.load(std::memory_order_relaxed));
  if (since != since_) {
    since_ = since;
    next_ = first;
  }
  const absl::Duration waited = now - since;
  if (first <= absl::ZeroDuration() || waited < next_) return;
  next_ = 2 * waited;
  // ALLOW: the time of day is for people, and the wait's clock need not be the calendar's.
  const absl::Time began = absl::Now() - waited;
  const absl::Duration unit = waited < absl::Seconds(1) ? absl::Milliseconds(1) : absl::Seconds(1);
  const std::string seconds = absl::FormatDuration(absl::Trunc(waited, unit));
  Log(LogLevel::kWarning,
      describe(absl::StrCat(seconds, " (since ",
                            absl::FormatTime("%H:%M:%S", began, absl::LocalTimeZone()), ")")));
}

}  // namespace pelton
