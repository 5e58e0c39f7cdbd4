#include "torch_bindings/csrc/model_state.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/bucket/slot_state.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

using SlotsByName = absl::flat_hash_map<std::string, SlotId>;

SlotsByName SlotsOf(const Plan& plan) {
  SlotsByName slots;
  for (size_t i = 0; i < plan.tensors().size(); ++i) {
    slots.emplace(plan.tensors()[i].name, SlotId(static_cast<int32_t>(i)));
  }
  return slots;
}

absl::StatusOr<SlotId> Find(const SlotsByName& slots, const std::string& name) {
  const auto found = slots.find(name);
  if (found != slots.end()) return found->second;
  return absl::InvalidArgumentError(absl::StrCat("state: the model has no tensor '", name, "'"));
}

absl::StatusOr<std::vector<SlotId>> OrderOf(const ModelState& state, const SlotsByName& slots) {
  std::vector<SlotId> order;
  for (const std::string& name : state.order) {
    ASSIGN_OR_RETURN(const SlotId slot, Find(slots, name));
    order.push_back(slot);
  }
  return order;
}

absl::StatusOr<SlotState> ToSlotState(const TensorState& state, const SlotsByName& slots) {
  ASSIGN_OR_RETURN(const SlotId slot, Find(slots, state.tensor));
  ASSIGN_OR_RETURN(const DType dtype, ToDType(state.values.scalar_type()));
  if (!state.values.is_contiguous() || !state.values.device().is_cpu() || state.begin < 0) {
    return absl::InvalidArgumentError(absl::StrCat("state: ", state.key, " of '", state.tensor,
                                                   "' is not a contiguous tensor on the CPU"));
  }
  auto* const data = static_cast<std::byte*>(state.values.data_ptr());
  return SlotState{.key = state.key,
                   .slot = slot,
                   .dtype = dtype,
                   .begin_count = static_cast<uint64_t>(state.begin),
                   .bytes = absl::MakeSpan(data, state.values.nbytes())};
}

}  // namespace

ModelState StateOf(ModelRounds& rounds) {
  const Plan& plan = rounds.plan();
  ModelState state;
  state.rounds = rounds.round().value() - 1;
  if (plan.generation() > Generation(1)) {
    for (const BucketLayout& bucket : plan.buckets()) {
      for (SlotId slot : bucket.slots) state.order.push_back(plan.tensor(slot).name);
    }
  }
  for (const SlotState& kept : rounds.States()) {
    const auto count = static_cast<int64_t>(kept.bytes.size() / SizeOf(kept.dtype));
    at::Tensor values = at::empty({count}, at::TensorOptions().dtype(ToScalarType(kept.dtype)));
    std::memcpy(values.data_ptr(), kept.bytes.data(), kept.bytes.size());
    state.tensors.push_back({kept.key, plan.tensor(kept.slot).name,
                             static_cast<int64_t>(kept.begin_count), std::move(values)});
  }
  return state;
}

absl::Status Restore(const ModelState& state, ModelRounds& rounds, absl::Time deadline) {
  const SlotsByName slots = SlotsOf(rounds.plan());
  std::vector<SlotState> saved;
  for (const TensorState& tensor : state.tensors) {
    ASSIGN_OR_RETURN(SlotState slot_state, ToSlotState(tensor, slots));
    saved.push_back(std::move(slot_state));
  }
  ASSIGN_OR_RETURN(const std::vector<SlotId> order, OrderOf(state, slots));
  if (!order.empty()) RETURN_IF_ERROR(rounds.Replan(order, deadline));
  CopySlotStates(saved, rounds.States());
  return absl::OkStatus();
}

}  // namespace pelton::torch_bindings
