#include "comm/control/control.h"

#include "absl/strings/str_cat.h"

namespace pelton {

absl::Status Barrier(Control& control, const std::string& name, absl::Time deadline) {
  return control.AllGather(absl::StrCat("barrier/", name), "", deadline).status();
}

}  // namespace pelton
