#include "comm/control/order_inbox.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/limits.h"

namespace pelton {

void OrderInbox::SetCallback(Control::OrderCallback callback) {
  {
    MutexLock lock(&mutex_);
    AwaitIdle();
    has_callback_ = callback != nullptr;
    callback_ = std::move(callback);
  }
  Deliver();
}

void OrderInbox::Push(Order order) {
  MutexLock lock(&mutex_);
  if (!closed_) orders_.push_back(std::move(order));
}

void OrderInbox::Deliver() {
  mutex_.Lock();
  if (delivering_ || !has_callback_) {
    mutex_.Unlock();
    return;
  }
  delivering_ = true;
  while (!orders_.empty()) {
    const Order order = std::move(orders_.front());
    orders_.pop_front();
    mutex_.Unlock();
    callback_(order);
    mutex_.Lock();
  }
  delivering_ = false;
  idle_.SignalAll();
  mutex_.Unlock();
}

void OrderInbox::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  orders_.clear();
  AwaitIdle();
}

void OrderInbox::AwaitIdle() {
  const absl::Time deadline = Clock::Real().Now() + limits::kStopTimeout;
  while (delivering_) {
    const bool late = idle_.WaitWithDeadline(&mutex_, deadline);
    PELTON_CHECK(!late || !delivering_) << "an order's callback must not block";
  }
}

}  // namespace pelton
