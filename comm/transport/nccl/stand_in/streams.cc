#include "comm/transport/nccl/stand_in/streams.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/base/clock.h"

namespace pelton::stand_in {
namespace {

// All streams. Threads: any. Owns: nothing.
struct Streams {
  static Streams& Get() {
    static Streams* const streams = new Streams;  // outlives every stream
    return *streams;
  }
  Mutex mutex;
  std::set<CUstream_st*> open ABSL_GUARDED_BY(mutex);
  unsigned made ABSL_GUARDED_BY(mutex) = 0;
};

// How much later work begins, at most, for programs that no test can steer: what does not wait for
// another stream is then seen not to.
absl::Duration LongestLag() {
  const char* text = std::getenv("PELTON_STAND_IN_LAG_US");
  return absl::Microseconds(text == nullptr ? 0 : std::atoi(text));
}

}  // namespace

uint64_t OwnMarks::Mark() {
  MutexLock lock(&mutex_);
  return ++marked_;
}

void OwnMarks::Reach(uint64_t mark) {
  MutexLock lock(&mutex_);
  done_ = std::max(done_, mark);
  reached_.SignalAll();
}

void OwnMarks::WaitFor(uint64_t mark) {
  MutexLock lock(&mutex_);
  while (done_ < mark) reached_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
}

uint64_t OwnMarks::last() {
  MutexLock lock(&mutex_);
  return marked_;
}

bool OwnMarks::all_reached() {
  MutexLock lock(&mutex_);
  return done_ == marked_;
}

CUstream_st& StreamOf(CUstream_st* stream) {
  static CUstream_st* const by_default = new CUstream_st;  // lives as long as the process
  return stream == nullptr ? *by_default : *stream;
}

void SynchronizeAll() {
  std::vector<std::shared_ptr<Marks>> works;
  {
    Streams& streams = Streams::Get();
    MutexLock lock(&streams.mutex);
    for (CUstream_st* stream : streams.open) works.push_back(stream->work());
  }
  for (const std::shared_ptr<Marks>& work : works) work->WaitFor(work->last());
}

}  // namespace pelton::stand_in

using pelton::MutexLock;
using pelton::stand_in::Streams;

CUstream_st::CUstream_st() {
  Streams& streams = Streams::Get();
  MutexLock lock(&streams.mutex);
  streams.open.insert(this);
  chance_.seed(++streams.made);
  thread_ = std::thread([this] { Run(); });
}

CUstream_st::~CUstream_st() {
  {
    Streams& streams = Streams::Get();
    MutexLock lock(&streams.mutex);
    streams.open.erase(this);
  }
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void CUstream_st::Push(std::function<void()> work) {
  MutexLock lock(&mutex_);
  work_->Mark();
  queue_.push_back(std::move(work));
  changed_.SignalAll();
}

void CUstream_st::Run() {
  for (uint64_t mark = 1; true; ++mark) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) {
        changed_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
      }
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    Linger();
    work();
    work = nullptr;  // what it holds is gone when others see that it is done
    work_->Reach(mark);
  }
}

void CUstream_st::Linger() {
  static const absl::Duration longest = pelton::stand_in::LongestLag();
  if (longest <= absl::ZeroDuration()) return;
  const auto share = std::uniform_real_distribution<double>(0, 1)(chance_);
  const absl::Time begin = pelton::Clock::Real().Now() + longest * share;
  MutexLock lock(&mutex_);
  while (!changed_.WaitWithDeadline(&mutex_, begin)) {
  }
}
