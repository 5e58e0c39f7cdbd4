// Why something ended: the first reason that any thread gives.
#ifndef PELTON_CORE_BASE_END_REASON_H_
#define PELTON_CORE_BASE_END_REASON_H_

#include <atomic>

#include "absl/status/status.h"
#include "core/base/sync.h"

namespace pelton {

// Threads that give a reason at once agree on one, and each of them finds it there when its call
// returns. The reason never changes afterwards, so that whoever reads it takes no lock: on the data
// path an end that has not come costs one load.
// Threads: any. Owns: the reason.
class EndReason {
 public:
  // Keeps `reason` unless there is one; an OK would look like no end, and becomes Cancelled. True:
  // it is this one, so that the caller does what follows from it.
  bool Give(const absl::Status& reason) {
    MutexLock lock(&giving_);
    if (is_given()) return false;
    reason_ = reason.ok() ? absl::CancelledError("aborted without a reason") : reason;
    is_given_.store(true);
    return true;
  }

  bool is_given() const { return is_given_.load(); }
  // OK while there is none.
  absl::Status Get() const { return is_given() ? reason_ : absl::OkStatus(); }

 private:
  Mutex giving_;
  std::atomic<bool> is_given_{false};
  absl::Status reason_;  // written once, before is_given_
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_END_REASON_H_
