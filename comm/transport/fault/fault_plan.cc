#include "comm/transport/fault/fault_plan.h"

#include "absl/strings/str_cat.h"

namespace pelton {

absl::Status FaultDice::OnLaunch() {
  ++launches_;
  if (launches_ == plan_.kill_launch) {
    return absl::UnavailableError(
        absl::StrCat("injected fault: the connection broke at launch ", launches_));
  }
  if (launches_ == plan_.fail_launch) {
    return absl::ResourceExhaustedError(
        absl::StrCat("injected fault: launch ", launches_, " is refused"));
  }
  return absl::OkStatus();
}

}  // namespace pelton
