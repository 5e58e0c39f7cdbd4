#include "comm/transport/fault/fault_plan.h"

#include "absl/strings/str_cat.h"

namespace pelton {

absl::Status FaultDice::OnLaunch() {
  const uint64_t launch = ++launches_;
  if (launch == plan_.kill_launch) {
    return absl::UnavailableError(
        absl::StrCat("injected fault: the connection broke at launch ", launch));
  }
  if (launch == plan_.fail_launch) {
    return absl::ResourceExhaustedError(
        absl::StrCat("injected fault: launch ", launch, " is refused"));
  }
  return absl::OkStatus();
}

}  // namespace pelton
