#include "core/base/threads.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/clock.h"

namespace pelton {
namespace {

// How late a Wake is seen where there is no descriptor for it.
constexpr absl::Duration kBlindSlice = absl::Milliseconds(10);
constexpr absl::Duration kLongestSlice = absl::Hours(1);

// Rounded up, so that nobody is called before its deadline.
int MillisecondsUntil(absl::Time deadline, absl::Duration at_most) {
  const absl::Duration left = std::max(deadline - Clock::Real().Now(), absl::ZeroDuration());
  const absl::Duration slice = std::min(left, at_most) + absl::Microseconds(999);
  return static_cast<int>(absl::ToInt64Milliseconds(slice));
}

}  // namespace

PollThread::PollThread(std::string name)
    : name_(std::move(name)), owner_(getpid()), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

PollThread::~PollThread() {
  Stop();
  if (wake_ >= 0) close(wake_);
}

void PollThread::Start(Prepare prepare, React react) {
  prepare_ = std::move(prepare);
  react_ = std::move(react);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
}

// Why no wake-up is lost. A Wake counts in the eventfd until the thread takes the count, and the
// thread takes it after each wait and before it prepares the next one. A Wake that comes before the
// taking is followed by that preparation, which sees what the caller had written. One that comes
// later is still counted when the next wait begins, and ends it at once.
void PollThread::Wake() {
  if (getpid() != owner_) return;  // it would wake the parent's thread
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

// The flag is there before the wake-up is, and the thread looks at it before each wait.
void PollThread::Stop() {
  if (!thread_.joinable()) return;
  if (getpid() != owner_) return thread_.detach();  // ALLOW: it is not in this child
  is_stopping_.store(true);
  Wake();
  thread_.join();
}

void PollThread::Run() {
  while (!is_stopping_.load() && WaitOnce()) continue;
}

bool PollThread::WaitOnce() {
  entries_.clear();
  const std::optional<absl::Time> deadline = prepare_(entries_);
  if (!deadline.has_value()) return false;
  entries_.push_back({wake_, POLLIN, 0});  // poll overlooks a negative one
  const absl::Duration at_most = wake_ < 0 ? kBlindSlice : kLongestSlice;
  const int ready = poll(entries_.data(), entries_.size(), MillisecondsUntil(*deadline, at_most));
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t taken = read(wake_, &wakes, sizeof wakes);
  entries_.pop_back();
  // Where poll fails, a signal's handler having run for instance, it has told of nothing.
  for (pollfd& entry : entries_) entry.revents = ready < 0 ? 0 : entry.revents;
  if (is_stopping_.load()) return false;
  react_(entries_);
  return true;
}

CallThread::CallThread(std::string name, size_t most_waiting)
    : name_(std::move(name)), most_waiting_(most_waiting) {}

CallThread::~CallThread() {
  std::thread thread;
  {
    MutexLock lock(&mutex_);
    is_ending_ = true;
    changed_.SignalAll();
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

bool CallThread::Add(Call call) {
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

bool CallThread::AwaitIdle(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!calls_.empty() && Clock::Real().Now() < deadline) {
    changed_.WaitWithDeadline(&mutex_, deadline);
  }
  return calls_.empty();
}

void CallThread::Run() {
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
