// The root actor of a process: decides what it means when a rank is lost.
#ifndef PELTON_BACKEND_ROOT_H_
#define PELTON_BACKEND_ROOT_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "core/actor/actor.h"
#include "core/actor/timer.h"
#include "core/base/ids.h"

namespace pelton {

// Hears of the failures of the job.
// Threads: the root actor's turns. Owns: what its subclass says.
class FailureSink {
 public:
  virtual ~FailureSink() = default;
  // The job has failed.
  virtual void Fail(const absl::Status& reason) = 0;
  // `rank` left in good order some time ago: what waits for it cannot succeed.
  virtual void LoseMember(Rank rank, const absl::Status& reason) = 0;
  // This rank has failed, which the others are to be told. Blocks: one round trip.
  virtual void TellOthers(const absl::Status& reason) = 0;
};

// An order of the control plane, as a message.
struct OrderReceived {
  Order::Kind kind;
  std::optional<Rank> culprit;
  absl::Status reason;
};
// A rank left in good order some time ago.
struct GraceOver {
  Rank rank;
  absl::Status reason;
};
// Something on this rank has failed.
struct FailureHere {
  absl::Status reason;
};

// Threads: as every actor. Owns: its timers; the sink is borrowed and outlives it.
class Root final : public Actor {
 public:
  // A rank that leaves has finished its part of what is under way, but the others may still be
  // reading the results: they get this long before operations that can no longer succeed are ended.
  static constexpr absl::Duration kGrace = absl::Seconds(1);

  explicit Root(FailureSink* sink) : sink_(sink) {}

  void Handle(OrderReceived order);
  void Handle(GraceOver over);
  void Handle(FailureHere failure);

 private:
  FailureSink* sink_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_ROOT_H_
