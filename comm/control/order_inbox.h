// Orders on their way to the callback that receives them.
#ifndef PELTON_COMM_CONTROL_ORDER_INBOX_H_
#define PELTON_COMM_CONTROL_ORDER_INBOX_H_

#include <deque>

#include "absl/base/thread_annotations.h"
#include "comm/control/control.h"
#include "core/base/sync.h"

namespace pelton {

// Keeps order, delivers one at a time and loses none: what comes before there is a callback waits
// for it.
// Threads: any. Owns: the orders not yet delivered, and the callback.
class OrderInbox {
 public:
  // Blocks: while an order is being delivered.
  void SetCallback(Control::OrderCallback callback);
  // Does not deliver, so it may be called under a lock. Blocks: never.
  void Push(Order order);
  // Calls the callback with all that is there, unless another thread is doing so.
  void Deliver();
  // Drops what is there and comes later. Blocks: while an order is being delivered.
  void Close();

 private:
  void AwaitIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar idle_;
  std::deque<Order> orders_ ABSL_GUARDED_BY(mutex_);
  // Written while nothing is being delivered, so the delivering thread may read it without the
  // lock.
  Control::OrderCallback callback_;
  bool has_callback_ ABSL_GUARDED_BY(mutex_) = false;
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_ORDER_INBOX_H_
