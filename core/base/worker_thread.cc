#include "core/base/worker_thread.h"

#include <pthread.h>

#include <utility>

#include "core/base/clock.h"

namespace pelton {

WorkerThread::WorkerThread(std::string name, size_t most_waiting)
    : name_(std::move(name)), most_waiting_(most_waiting) {}

WorkerThread::~WorkerThread() {
  std::thread thread;
  {
    MutexLock lock(&mutex_);
    is_ending_ = true;
    changed_.SignalAll();
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

bool WorkerThread::Add(Call call) {
  MutexLock lock(&mutex_);
  if (calls_.size() >= most_waiting_) return false;
  calls_.push_back(std::move(call));
  if (!thread_.joinable() && !is_ending_) {
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
  }
  changed_.SignalAll();
  return true;
}

bool WorkerThread::AwaitIdle(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!calls_.empty() && Clock::Real().Now() < deadline) {
    changed_.WaitWithDeadline(&mutex_, deadline);
  }
  return calls_.empty();
}

void WorkerThread::Run() {
  while (true) {
    Call call;
    {
      MutexLock lock(&mutex_);
      while (calls_.empty() && !is_ending_) changed_.Wait(&mutex_);
      if (calls_.empty()) return;
      call = std::move(calls_.front());
    }
    call();
    call = nullptr;  // what it holds goes before it counts as made
    MutexLock lock(&mutex_);
    calls_.pop_front();
    changed_.SignalAll();
  }
}

}  // namespace pelton
