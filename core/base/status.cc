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

absl::string_view CutToFit(absl::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  // All bytes of a letter but the first one are 10xxxxxx.
  while (most_bytes > 0 && (text[most_bytes] & 0xC0) == 0x80) --most_bytes;
  return text.substr(0, most_bytes);
}

}  // namespace pelton
