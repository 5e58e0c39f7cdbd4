// A control channel that answers nothing: for tests, which override what they ask.
#ifndef PELTON_BACKEND_TEST_CONTROL_H_
#define PELTON_BACKEND_TEST_CONTROL_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/control.h"

namespace pelton {

// Threads: as its subclass says. Owns: nothing.
class SilentControl : public Control {
 public:
  absl::StatusOr<Membership> Join(const JoinRequest&, absl::Time) override { return Nothing(); }
  absl::StatusOr<ControlAnswer> Ask(ControlQuestion, absl::Time) override { return Nothing(); }
  void SetRound(Round) override {}
  absl::Status Report(const absl::Status&, absl::Time) override { return Nothing(); }
  absl::Status Leave(absl::Time) override { return Nothing(); }
  void OnOrder(OrderCallback) override {}

 private:
  static absl::Status Nothing() { return absl::UnavailableError("this control answers nothing"); }
};

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_CONTROL_H_
