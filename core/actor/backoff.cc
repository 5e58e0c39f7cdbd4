#include "core/actor/backoff.h"

#include <sched.h>

#include <atomic>

#include "core/base/cores.h"

namespace pelton {
namespace {

std::atomic<int> runtime_threads{0};
std::atomic<int> processes_on_host{1};

}  // namespace

RuntimeThread::RuntimeThread() { runtime_threads.fetch_add(1, std::memory_order_relaxed); }
RuntimeThread::~RuntimeThread() { runtime_threads.fetch_sub(1, std::memory_order_relaxed); }

void SetProcessesOnHost(int count) { processes_on_host.store(count, std::memory_order_relaxed); }

bool SpinningAllowed() {
  static const int cores = UsableCores();
  const int threads = runtime_threads.load(std::memory_order_relaxed) + 1;
  return threads * processes_on_host.load(std::memory_order_relaxed) <= cores;
}

bool Backoff::Spin() {
  if (spins_ == 0) return false;
  --spins_;
  for (int i = 0; i < 4; ++i) CpuRelax();
  return true;
}

bool Backoff::Pause() {
  if (Spin()) return true;
  if (yields_ > 0) {
    --yields_;
    sched_yield();
    return true;
  }
  return false;
}

}  // namespace pelton
