#include "comm/control/control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::vector<std::string>> Control::AllGatherAmong(AllGatherRequest request,
                                                                 absl::Time deadline) {
  ASSIGN_OR_RETURN(const AllGatherResult result,
                   AskFor<AllGatherResult>(std::move(request), deadline));
  return *result.values;
}

absl::Status Barrier(Control& control, const std::string& name, absl::Time deadline) {
  return control.AllGather(absl::StrCat("barrier/", name), "", deadline).status();
}

}  // namespace pelton
