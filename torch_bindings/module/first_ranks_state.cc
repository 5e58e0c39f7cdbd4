#include "torch_bindings/module/first_ranks_state.h"

#include <ATen/Functions.h>

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton {
namespace {

using torch_bindings::NamedTensors;

std::string Describe(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    absl::StrAppend(&text, name, " ", c10::toString(tensor.scalar_type()), " [",
                    absl::StrJoin(tensor.sizes(), ", "), "]\n");
  }
  return text;
}

// The first line that one text has and the other has not, or has elsewhere.
std::string FirstDifference(const std::string& mine, const std::string& theirs) {
  const std::vector<std::string> my_lines = absl::StrSplit(mine, '\n');
  const std::vector<std::string> their_lines = absl::StrSplit(theirs, '\n');
  size_t i = 0;
  while (i < my_lines.size() && i < their_lines.size() && my_lines[i] == their_lines[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() && !lines[i].empty() ? lines[i] : "nothing more";
  };
  return absl::StrCat(line(my_lines), ", where rank 0 has ", line(their_lines));
}

absl::StatusOr<std::string> BroadcastText(Communicator& communicator, std::string text,
                                          absl::Time deadline) {
  int64_t size = static_cast<int64_t>(text.size());
  ASSIGN_OR_RETURN(Completion done, Broadcast(communicator, {&size, 1, DType::kInt64}, Rank(0)));
  RETURN_IF_ERROR(Await(communicator, done, deadline));
  text.resize(static_cast<size_t>(size));
  if (text.empty()) return text;
  ASSIGN_OR_RETURN(done,
                   Broadcast(communicator, {text.data(), text.size(), DType::kUInt8}, Rank(0)));
  RETURN_IF_ERROR(Await(communicator, done, deadline));
  return text;
}

absl::Status CheckAlike(Communicator& communicator, const std::string& module,
                        const NamedTensors& tensors, absl::Time deadline) {
  const std::string mine = Describe(tensors);
  ASSIGN_OR_RETURN(const std::string theirs, BroadcastText(communicator, mine, deadline));
  int64_t differs = mine == theirs ? 0 : 1;
  std::vector<int64_t> all(static_cast<size_t>(communicator.world_size().value()));
  ASSIGN_OR_RETURN(const Completion gathered, AllGather(communicator, {&differs, 1, DType::kInt64},
                                                        {all.data(), all.size(), DType::kInt64}));
  RETURN_IF_ERROR(Await(communicator, gathered, deadline));
  std::vector<size_t> others;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != 0) others.push_back(rank);
  }
  if (others.empty()) return absl::OkStatus();
  const std::string difference =
      differs == 0 ? "" : absl::StrCat(" (here: ", FirstDifference(mine, theirs), ")");
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", communicator.rank().value(), ": module '", module,
                   "': the parameters and buffers of rank(s) ", absl::StrJoin(others, ", "),
                   " are not those of rank 0", difference, "; make the same module on all ranks"));
}

absl::Status Take(Communicator& communicator, const at::Tensor& tensor, absl::Time deadline) {
  if (tensor.numel() == 0) return absl::OkStatus();
  const at::Tensor whole = tensor.detach().cpu().contiguous();
  ASSIGN_OR_RETURN(const Tensor flat, torch_bindings::Flat(whole, "tensor"));
  ASSIGN_OR_RETURN(const Completion completion, Broadcast(communicator, flat, Rank(0)));
  RETURN_IF_ERROR(Await(communicator, completion, deadline));
  const bool is_in_place = whole.is_alias_of(tensor);
  if (!is_in_place) tensor.detach().copy_(whole);
  return absl::OkStatus();
}

}  // namespace

absl::Status TakeFirstRanksState(Communicator& communicator, const std::string& module,
                                 const NamedTensors& tensors, absl::Time deadline) {
  RETURN_IF_ERROR(CheckAlike(communicator, module, tensors, deadline));
  for (const auto& [name, tensor] : tensors) {
    const absl::Status taken = Take(communicator, tensor, deadline);
    if (!taken.ok()) return Annotate(taken, absl::StrCat("module '", module, "': ", name));
  }
  return absl::OkStatus();
}

}  // namespace pelton
