#include "torch_bindings/csrc/python_handle.h"

#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {
namespace {

// The ranks that a difference names are numbered within the group that has found it.
std::string InWorldRanks(absl::string_view text, const Group& group) {
  constexpr absl::string_view kRank = "rank ";
  std::string in_world;
  size_t begin = 0;
  for (size_t at = text.find(kRank); at != text.npos; at = text.find(kRank, begin)) {
    const size_t number_at = at + kRank.size();
    size_t end = number_at;
    while (end < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[end]))) ++end;
    absl::StrAppend(&in_world, text.substr(begin, number_at - begin));
    size_t rank = 0;
    const bool is_member = absl::SimpleAtoi(text.substr(number_at, end - number_at), &rank) &&
                           rank < group.members.size();
    if (is_member) {
      absl::StrAppend(&in_world, group.members[rank].value());
    } else {
      absl::StrAppend(&in_world, text.substr(number_at, end - number_at));
    }
    begin = end;
  }
  absl::StrAppend(&in_world, text.substr(begin));
  return in_world;
}

// Of differences between ranks; what else goes wrong tells its ranks itself.
absl::Status Told(const absl::Status& status, const Group* group, const at::Tensor& result) {
  if (!absl::IsInvalidArgument(status)) return status;
  std::string text(status.message());
  if (group != nullptr) text = InWorldRanks(text, *group);
  if (absl::StrContains(text, "shapes of the tensors differ") && result.defined()) {
    absl::StrAppend(&text, "; this rank's is [", absl::StrJoin(result.sizes(), ", "), "]");
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace

at::Tensor PythonHandle::Wait() {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  lane_->Wait(job_, absl::InfiniteFuture());
  ThrowIfError(Told(job_->status(), group_.get(), outcome_->result));
  if (outcome_->next != nullptr) {
    outcome_->next_lane->Wait(outcome_->next, absl::InfiniteFuture());
    ThrowIfError(Told(outcome_->next->status(), nullptr, outcome_->result));
  }
  ThrowIfError(outcome_->failure);
  return outcome_->result;
}

}  // namespace pelton::torch_bindings
