#include "core/base/status.h"

namespace pelton {

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

absl::Status Annotate(const absl::Status& status, absl::FunctionRef<std::string()> context) {
  return status.ok() ? status : Annotate(status, context());
}

}  // namespace pelton
