// Messages on their way to the callback that receives them.
#ifndef PELTON_CORE_BASE_INBOX_H_
#define PELTON_CORE_BASE_INBOX_H_

#include <deque>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/sync.h"

namespace pelton {

// Keeps order, delivers one at a time and loses none: what comes before there is a callback waits
// for it. No lock is held while the callback runs, which must not block, nor call SetCallback or
// Close, nor while messages and callbacks are destroyed: what they own may come back here.
// Threads: any. Owns: the messages not yet delivered, and the callback.
template <typename Message>
class Inbox {
 public:
  using Callback = std::function<void(const Message&)>;

  // Null: what comes waits again. Blocks: while a message is being delivered.
  void SetCallback(Callback callback) {
    {
      MutexLock lock(&mutex_);
      AwaitIdle();
      has_callback_ = callback != nullptr;
      std::swap(callback_, callback);  // the former one ends with the argument
    }
    Deliver();
  }
  // Does not deliver, so it may be called under a lock. Blocks: never.
  void Push(Message message) {
    MutexLock lock(&mutex_);
    if (!closed_) messages_.push_back(std::move(message));
  }
  // Calls the callback with all that is there, unless another thread is doing so.
  void Deliver() {
    mutex_.Lock();
    if (delivering_ || !has_callback_) {
      mutex_.Unlock();
      return;
    }
    delivering_ = true;
    while (!messages_.empty()) {
      {
        const Message message = std::move(messages_.front());
        messages_.pop_front();
        mutex_.Unlock();
        callback_(message);
      }
      mutex_.Lock();
    }
    delivering_ = false;
    idle_.SignalAll();
    mutex_.Unlock();
  }
  // Drops the messages that are queued and those that come later. Blocks: while a message is being
  // delivered.
  void Close() {
    std::deque<Message> dropped;
    MutexLock lock(&mutex_);
    closed_ = true;
    dropped.swap(messages_);
    AwaitIdle();
  }

 private:
  void AwaitIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time deadline = Clock::Real().Now() + limits::kStopTimeout;
    while (delivering_) {
      const bool late = idle_.WaitWithDeadline(&mutex_, deadline);
      PELTON_CHECK(!late || !delivering_) << "the callback of an inbox must not block";
    }
  }

  Mutex mutex_;
  CondVar idle_;
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
  // Written while nothing is being delivered, so the delivering thread may read it without the
  // lock.
  Callback callback_;
  bool has_callback_ ABSL_GUARDED_BY(mutex_) = false;
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_INBOX_H_
