#include "comm/control/plan_check.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/control/coordinator_messages.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Ranks by the hash they hold, in the order of their first member.
using Camps = std::vector<std::pair<std::string, std::vector<Rank>>>;

Camps GroupByHash(const std::vector<std::string>& hashes, const std::vector<Rank>& members) {
  Camps camps;
  for (size_t i = 0; i < hashes.size(); ++i) {
    auto camp = std::find_if(camps.begin(), camps.end(),
                             [&](const auto& entry) { return entry.first == hashes[i]; });
    if (camp == camps.end()) camp = camps.insert(camps.end(), {hashes[i], {}});
    camp->second.push_back(members.empty() ? Rank(static_cast<int32_t>(i)) : members[i]);
  }
  return camps;
}

std::vector<std::string> SplitEntries(const std::string& text) {
  if (text.empty()) return {};
  return absl::StrSplit(text, '\0');
}

// Two entries as an error shows them: long ones, as that of an algorithm with a graph of many
// edges, from the word in which they begin to differ.
std::pair<std::string, std::string> Shown(absl::string_view left, absl::string_view right) {
  constexpr size_t kLong = 128;  // more is cut off
  if (std::max(left.size(), right.size()) <= kLong) return {Quote(left), Quote(right)};
  size_t same = 0;
  while (same < std::min(left.size(), right.size()) && left[same] == right[same]) ++same;
  if (same < kLong / 2) return {Quote(left), Quote(right)};
  const size_t space = left.substr(0, same).rfind(' ');
  const size_t begin = space == absl::string_view::npos ? same : space + 1;
  return {absl::StrCat("... ", Quote(left.substr(begin))),
          absl::StrCat("... ", Quote(right.substr(begin)))};
}

// "entry 3: 'a' on rank 0, 'b' on rank 2".
std::string FirstDifference(const Camps& camps, const std::string& left, const std::string& right) {
  const std::vector<std::string> a = SplitEntries(left);
  const std::vector<std::string> b = SplitEntries(right);
  const size_t shared = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < shared && a[i] == b[i]) ++i;
  if (i == a.size() && i == b.size()) return "their entries read the same";
  std::pair<std::string, std::string> shown = {"nothing", "nothing"};
  if (i < a.size() && i < b.size()) {
    shown = Shown(a[i], b[i]);
  } else {
    (i < a.size() ? shown.first : shown.second) = Quote(i < a.size() ? a[i] : b[i]);
  }
  return absl::StrCat("the first difference is entry ", i, ": ", shown.first, " on rank ",
                      camps[0].second[0].value(), ", ", shown.second, " on rank ",
                      camps[1].second[0].value());
}

}  // namespace

absl::Status CheckPlan(Control& control, Rank self, const PlanSummary& plan, absl::Time deadline) {
  const std::string name = absl::StrCat("plan/", plan.name, "/", plan.version.value());
  const std::string hash = absl::StrCat(absl::Hex(plan.hash, absl::kZeroPad16));
  ASSIGN_OR_RETURN(const std::vector<std::string> hashes,
                   control.AllGatherAmong({name, hash, plan.members}, deadline));
  const Camps camps = GroupByHash(hashes, plan.members);
  if (camps.size() == 1) return absl::OkStatus();

  // One rank of each of the first two camps shows its entries; all ranks compare those two.
  const bool shows = self == camps[0].second[0] || self == camps[1].second[0];
  std::string entries;
  if (shows) entries = absl::StrJoin(plan.entries, absl::string_view("\0", 1));
  entries.resize(std::min(entries.size(), limits::kMaxValueBytes / 4));
  ASSIGN_OR_RETURN(
      const std::vector<std::string> shown,
      control.AllGatherAmong({absl::StrCat(name, "/entries"), entries, plan.members}, deadline));
  std::string text = absl::StrCat("plan ", Quote(plan.name), " of version ", plan.version.value(),
                                  " differs between ranks: ");
  for (const auto& [camp_hash, ranks] : camps) {
    absl::StrAppend(&text, "rank ", ListRanks(ranks), " has hash ", camp_hash, "; ");
  }
  const auto place_of = [&hashes](const std::string& camp_hash) {
    return std::find(hashes.begin(), hashes.end(), camp_hash) - hashes.begin();
  };
  absl::StrAppend(&text, FirstDifference(camps, shown[place_of(camps[0].first)],
                                         shown[place_of(camps[1].first)]));
  return absl::FailedPreconditionError(text);
}

}  // namespace pelton
