// The handle of a message to be delivered later.
#ifndef PELTON_CORE_ACTOR_TIMER_H_
#define PELTON_CORE_ACTOR_TIMER_H_

#include <cstdint>
#include <utility>

#include "core/actor/message.h"
#include "core/actor/ref_ptr.h"

namespace pelton {
namespace internal {

// What a Timer speaks to: the queue that holds it.
// Threads: any. Owns: per implementation.
class TimerSource {
 public:
  virtual void Ref() = 0;
  virtual void Unref() = 0;
  virtual bool Cancel(uint32_t slot, uint32_t generation) = 0;

 protected:
  ~TimerSource() = default;
};

}  // namespace internal

// Names one pending timer. Dropping it lets the timer run; it may outlive the executor.
// Threads: any, one at a time. Owns: a count on the queue.
class Timer {
 public:
  Timer() = default;
  Timer(internal::RefPtr<internal::TimerSource> source, uint32_t slot, uint32_t generation)
      : source_(std::move(source)), slot_(slot), generation_(generation) {}

  // True if the message will now never be delivered; false if it was sent already, or there is
  // none.
  bool Cancel() {
    if (!source_) return false;
    return std::exchange(source_, {})->Cancel(slot_, generation_);
  }

 private:
  internal::RefPtr<internal::TimerSource> source_;
  uint32_t slot_ = 0;
  uint32_t generation_ = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_TIMER_H_
