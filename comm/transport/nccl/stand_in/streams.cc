#include "comm/transport/nccl/stand_in/streams.h"

#include <algorithm>
#include <utility>

namespace pelton::stand_in {

uint64_t Marks::Mark() {
  MutexLock lock(&mutex_);
  return ++marked_;
}

void Marks::Reach(uint64_t mark) {
  MutexLock lock(&mutex_);
  done_ = std::max(done_, mark);
  reached_.SignalAll();
}

void Marks::WaitFor(uint64_t mark) {
  MutexLock lock(&mutex_);
  while (done_ < mark) reached_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
}

uint64_t Marks::last() {
  MutexLock lock(&mutex_);
  return marked_;
}

bool Marks::all_reached() {
  MutexLock lock(&mutex_);
  return done_ == marked_;
}

CUstream_st& StreamOf(CUstream_st* stream) {
  static CUstream_st* const by_default = new CUstream_st;  // lives as long as the process
  return stream == nullptr ? *by_default : *stream;
}

}  // namespace pelton::stand_in

using pelton::MutexLock;

CUstream_st::CUstream_st() : thread_([this] { Run(); }) {}

CUstream_st::~CUstream_st() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void CUstream_st::Push(std::function<void()> work) {
  MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
  changed_.SignalAll();
}

void CUstream_st::Synchronize() {
  pelton::stand_in::Marks done;
  Push([&done] { done.Reach(1); });
  done.WaitFor(1);
}

bool CUstream_st::is_idle() {
  MutexLock lock(&mutex_);
  return queue_.empty() && !is_working_;
}

void CUstream_st::Run() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      is_working_ = false;
      while (queue_.empty() && !stopping_) {
        changed_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
      }
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      is_working_ = true;
    }
    work();
  }
}
