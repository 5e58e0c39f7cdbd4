#include "core/round/model_state.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/dtype.h"
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

namespace {

// One rank's share of one buffer of one tensor. Threads: a value. Owns: nothing.
struct Share {
  size_t rank;  // of the group that was
  const TensorState* state;

  uint64_t begin() const { return state->begin; }
  uint64_t end() const { return begin() + state->bytes.size() / SizeOf(state->dtype); }
  // Of the tensor's element `index`, which it has.
  const std::byte* At(uint64_t index) const {
    return state->bytes.data() + (index - begin()) * SizeOf(state->dtype);
  }
};
// By key and tensor, in rank order.
using Shares = absl::flat_hash_map<std::pair<std::string, std::string>, std::vector<Share>>;

// What this rank keeps of one buffer of one tensor: the elements from `begin` to `end` of the
// tensor, without the gap behind it. Threads: a value. Owns: nothing.
struct Kept {
  SlotState& state;
  const std::string& tensor;
  uint64_t begin;
  uint64_t end;

  std::byte* At(uint64_t index) const {
    return state.bytes.data() + (index - begin) * SizeOf(state.dtype);
  }
};

absl::Status Misfit(const Kept& kept, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("state: ", kept.state.key, " of '", kept.tensor, "', elements ", kept.begin,
                   " to ", kept.end, " of ", NameOf(kept.state.dtype), ": ", what,
                   "; pass the states of all ranks of one checkpoint, in rank order"));
}

absl::Status CheckTensors(absl::Span<const ModelState> states, const Plan& plan) {
  absl::flat_hash_set<absl::string_view> names;
  for (const TensorSpec& tensor : plan.tensors()) names.insert(tensor.name);
  for (const ModelState& state : states) {
    for (const TensorState& tensor : state.tensors) {
      if (names.contains(tensor.tensor)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("state: the model has no tensor '", tensor.tensor, "'"));
    }
  }
  return absl::OkStatus();
}

Shares SharesOf(absl::Span<const ModelState> states) {
  Shares shares;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    for (const TensorState& state : states[rank].tensors) {
      shares[{state.key, state.tensor}].push_back({rank, &state});
    }
  }
  return shares;
}

absl::Status CheckWhole(const Kept& kept, const Share& share) {
  if (share.begin() <= kept.begin && kept.end <= share.end()) return absl::OkStatus();
  return Misfit(kept, absl::StrCat("rank ", share.rank, "'s has a part of it only"));
}

absl::Status TakeCommon(const Kept& kept, absl::Span<const Share> shares) {
  const size_t size_bytes = (kept.end - kept.begin) * SizeOf(kept.state.dtype);
  for (const Share& share : shares) {
    RETURN_IF_ERROR(CheckWhole(kept, share));
    if (&share == shares.begin()) {
      std::memcpy(kept.At(kept.begin), share.At(kept.begin), size_bytes);
    } else if (std::memcmp(kept.At(kept.begin), share.At(kept.begin), size_bytes) != 0) {
      return Misfit(kept, absl::StrCat("rank ", share.rank, "'s differs from rank ",
                                       shares.front().rank, "'s"));
    }
  }
  return absl::OkStatus();
}

// Summed in rank order in more bits than T has: what the ranks hold alike stays bitwise.
template <typename T>
void Average(const Kept& kept, absl::Span<const Share> shares) {
  for (uint64_t i = kept.begin; i < kept.end; ++i) {
    long double sum = 0;
    for (const Share& share : shares) {
      T value;
      std::memcpy(&value, share.At(i), sizeof(value));
      sum += value;
    }
    const T mean = static_cast<T>(sum / static_cast<long double>(shares.size()));
    std::memcpy(kept.At(i), &mean, sizeof(mean));
  }
}

absl::Status TakeMean(const Kept& kept, absl::Span<const Share> shares) {
  for (const Share& share : shares) RETURN_IF_ERROR(CheckWhole(kept, share));
  if (kept.state.dtype == DType::kFloat32) {
    Average<float>(kept, shares);
  } else if (kept.state.dtype == DType::kFloat64) {
    Average<double>(kept, shares);
  } else {
    return Misfit(kept, "there is no mean of it");
  }
  return absl::OkStatus();
}

absl::Status TakeRanges(const Kept& kept, std::vector<Share> shares) {
  std::stable_sort(shares.begin(), shares.end(),
                   [](const Share& a, const Share& b) { return a.begin() < b.begin(); });
  uint64_t next = kept.begin;  // the first element that is missing yet
  for (const Share& share : shares) {
    const uint64_t end = std::min(share.end(), kept.end);
    if (share.begin() > next || end <= next) continue;
    std::memcpy(kept.At(next), share.At(next), (end - next) * SizeOf(kept.state.dtype));
    next = end;
  }
  if (next == kept.end) return absl::OkStatus();
  return Misfit(kept, absl::StrCat("no rank's has element ", next));
}

absl::Status Take(const Kept& kept, const std::vector<Share>& shares) {
  for (const Share& share : shares) {
    if (share.state->dtype == kept.state.dtype) continue;
    return Misfit(kept, absl::StrCat("rank ", share.rank, "'s is of ", NameOf(share.state->dtype)));
  }
  switch (kept.state.scope) {
    case StateScope::kCommon:
      return TakeCommon(kept, shares);
    case StateScope::kOwn:
      return TakeMean(kept, shares);
    case StateScope::kShared:
    case StateScope::kPassedOn:
      return TakeRanges(kept, shares);
    case StateScope::kReplica:
      return absl::OkStatus();
  }
  return Misfit(kept, "nothing says whose it is");
}

}  // namespace

absl::Status Reshard(absl::Span<const ModelState> states, ModelRounds& rounds,
                     absl::Time deadline) {
  RETURN_IF_ERROR(CheckTensors(states, rounds.plan()));
  if (!states.empty()) RETURN_IF_ERROR(AdoptOrder(states.front().order, rounds, deadline));
  const Shares shares = SharesOf(states);
  ASSIGN_OR_RETURN(std::vector<SlotState> states_here, rounds.SaveStates(deadline));
  for (SlotState& state : states_here) {
    const TensorSpec& tensor = rounds.plan().tensor(state.slot);
    const uint64_t end = state.begin_count + state.bytes.size() / SizeOf(state.dtype);
    const Kept kept{state, tensor.name, state.begin_count, std::min(end, tensor.count)};
    const auto found = shares.find({state.key, tensor.name});
    if (kept.begin >= kept.end || found == shares.end()) continue;
    RETURN_IF_ERROR(Take(kept, found->second));
  }
  return rounds.LoadStates(states_here, deadline);
}

}  // namespace pelton
