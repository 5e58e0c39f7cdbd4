#include "core/round/model_state.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/round/slot_state.h"

namespace pelton {
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

using SlotStatesByKey = absl::flat_hash_map<std::pair<std::string, SlotId>, const SlotState*>;

SlotStatesByKey ByKey(const std::vector<SlotState>& states) {
  SlotStatesByKey by_key;
  for (const SlotState& state : states) by_key[{state.key, state.slot}] = &state;
  return by_key;
}

// Where its elements end in the tensor, without the gap behind that.
uint64_t EndOf(const SlotState& state, const Plan& plan) {
  const uint64_t end = state.begin_count + state.bytes.size() / SizeOf(state.dtype);
  return std::min(end, plan.tensor(state.slot).count);
}

absl::Status Misfit(const SlotState& state, const Plan& plan, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "state: ", state.key, " of '", plan.tensor(state.slot).name, "', elements ",
      state.begin_count, " to ", EndOf(state, plan), " of ", NameOf(state.dtype), ": ", what,
      "; it was saved with ranks on other hosts, another bucket size, or is damaged"));
}

// Every element that is kept must be known, and the other way round.
absl::Status CheckCovers(const std::vector<SlotState>& saved, const std::vector<SlotState>& kept,
                         const Plan& plan) {
  const SlotStatesByKey known = ByKey(saved);
  for (const SlotState& state : kept) {
    if (state.begin_count >= EndOf(state, plan)) continue;
    const auto found = known.find({state.key, state.slot});
    if (found == known.end()) return Misfit(state, plan, "the state lacks it");
    const SlotState& other = *found->second;
    if (other.dtype != state.dtype) return Misfit(other, plan, "it is kept in another dtype");
    if (other.begin_count > state.begin_count || EndOf(other, plan) < EndOf(state, plan)) {
      return Misfit(state, plan, "the state has a part of it only");
    }
  }
  const SlotStatesByKey wanted = ByKey(kept);
  for (const SlotState& state : saved) {
    if (state.begin_count >= EndOf(state, plan)) continue;
    if (!wanted.contains({state.key, state.slot})) {
      return Misfit(state, plan, "this rank keeps no such thing");
    }
  }
  return absl::OkStatus();
}

bool IsNew(const ModelState& state) {
  return state.rounds == 0 && state.order.empty() && state.tensors.empty();
}

}  // namespace

absl::StatusOr<ModelState> StateOf(ModelRounds& rounds, absl::Time deadline) {
  const Plan& plan = rounds.plan();
  ModelState state;
  state.rounds = rounds.round().value() - 1;
  if (plan.version() > PlanVersion(1)) {
    for (const BucketLayout& bucket : plan.buckets()) {
      for (SlotId slot : bucket.slots) state.order.push_back(plan.tensor(slot).name);
    }
  }
  ASSIGN_OR_RETURN(std::vector<SlotState> saved, rounds.SaveStates(deadline));
  for (SlotState& kept : saved) {
    state.tensors.push_back({.key = std::move(kept.key),
                             .tensor = plan.tensor(kept.slot).name,
                             .begin = kept.begin_count,
                             .dtype = kept.dtype,
                             .bytes = std::move(kept.bytes)});
  }
  return state;
}

absl::Status AdoptOrder(const std::vector<std::string>& order, ModelRounds& rounds,
                        absl::Time deadline) {
  if (order.empty()) return absl::OkStatus();
  const SlotsByName slots = SlotsOf(rounds.plan());
  std::vector<SlotId> ordered;
  for (const std::string& name : order) {
    ASSIGN_OR_RETURN(const SlotId slot, Find(slots, name));
    ordered.push_back(slot);
  }
  return rounds.Replan(ordered, deadline);
}

absl::Status Restore(ModelState state, ModelRounds& rounds, absl::Time deadline) {
  if (IsNew(state)) return absl::OkStatus();
  const SlotsByName slots = SlotsOf(rounds.plan());
  std::vector<SlotState> saved;
  for (TensorState& tensor : state.tensors) {
    ASSIGN_OR_RETURN(const SlotId slot, Find(slots, tensor.tensor));
    saved.push_back({.key = tensor.key,
                     .slot = slot,
                     .dtype = tensor.dtype,
                     .begin_count = tensor.begin,
                     .bytes = std::move(tensor.bytes)});
  }
  RETURN_IF_ERROR(AdoptOrder(state.order, rounds, deadline));
  ASSIGN_OR_RETURN(const std::vector<SlotState> kept, rounds.SaveStates(deadline));
  RETURN_IF_ERROR(CheckCovers(saved, kept, rounds.plan()));
  return rounds.LoadStates(saved, deadline);
}

}  // namespace pelton
