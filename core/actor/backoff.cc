#include "core/actor/backoff.h"

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/actor/wait_hook.h"
#include "core/base/check.h"
#include "core/base/process_limits.h"

namespace pelton {
namespace {

std::atomic<int> runtime_threads{0};
std::atomic<int> processes_on_host{1};

absl::Duration SpinOfEnvironment() {
  const char* const text = std::getenv("PELTON_SPIN_US");
  uint32_t microseconds = 0;
  if (text == nullptr || *text == 0 || absl::SimpleAtoi(text, &microseconds)) {
    return absl::Microseconds(microseconds);
  }
  Log(LogLevel::kWarning,
      absl::StrCat("PELTON_SPIN_US='", text, "' is ignored: give a number of microseconds"));
  return absl::ZeroDuration();
}

}  // namespace

RuntimeThread::RuntimeThread() { runtime_threads.fetch_add(1, std::memory_order_relaxed); }
RuntimeThread::~RuntimeThread() { runtime_threads.fetch_sub(1, std::memory_order_relaxed); }

void SetProcessesOnHost(int count) { processes_on_host.store(count, std::memory_order_relaxed); }

bool SpinningAllowed() {
  static const int cores = UsableCores();
  const int threads = runtime_threads.load(std::memory_order_relaxed) + 1;
  return threads * processes_on_host.load(std::memory_order_relaxed) <= cores;
}

LongLook::LongLook() {
  static const absl::Duration of_environment = SpinOfEnvironment();
  lasts_ = of_environment;
}

bool LongLook::GoesOn(const Clock& clock) {
  if (lasts_ <= absl::ZeroDuration()) return false;
  const absl::Time now = clock.Now();
  if (until_ == absl::InfinitePast()) until_ = now + lasts_;
  if (now >= until_) return false;
  CpuRelax();
  return true;
}

bool Backoff::Spin() {
  if (idle_ >= looks_) return false;
  ++idle_;
  for (int i = 0; i < 4; ++i) CpuRelax();
  return true;
}

bool Backoff::Pause() {
  if (Spin()) return true;
  if (OnIdle() == Next::kPark) return false;
  if (WaitHook* const hook = WaitHook::Current()) {
    hook->Pause();
  } else {
    sched_yield();
  }
  return true;
}

}  // namespace pelton
