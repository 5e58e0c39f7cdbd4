#include "comm/control/coordinator_messages.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace pelton {

std::string Quote(absl::string_view name) {
  constexpr size_t kShownBytes = 128;
  const std::string shown = absl::CHexEscape(name.substr(0, kShownBytes));
  return absl::StrCat("'", shown, name.size() > kShownBytes ? "..." : "", "'");
}

std::string FormatTimeout(absl::Duration timeout) {
  const absl::Duration unit = timeout >= absl::Seconds(10)  ? absl::Seconds(1)
                              : timeout >= absl::Seconds(1) ? absl::Milliseconds(100)
                                                            : absl::Milliseconds(1);
  return absl::FormatDuration(absl::Trunc(timeout + unit / 2, unit));
}

std::string ListRanks(const std::vector<Rank>& ranks) {
  constexpr size_t kShown = 16;
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kShown; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i].value());
  }
  if (ranks.size() > kShown) absl::StrAppend(&text, " and ", ranks.size() - kShown, " more");
  return text;
}

}  // namespace pelton
