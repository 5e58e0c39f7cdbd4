// What a trainer asks of a wrapped model between its rounds.
#include <ATen/ops/from_blob.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/slot.h"
#include "torch_bindings/csrc/tensors.h"
#include "torch_bindings/csrc/wrapped_model.h"

namespace pelton::torch_bindings {

absl::Status WrappedModel::Tune(const std::string& csv_path) {
  if (owned_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("autotune: model '", options_.name, "' was detached; wrap the model again"));
  }
  if (when_ready_) RETURN_IF_ERROR(CheckRound());
  return port().Tune(csv_path);
}

void WrappedModel::EndTuning() {
  if (owned_ != nullptr) port().EndTuning();
}

void WrappedModel::TakeOver(const WrappedModel& before) {
  std::map<const void*, const Slot*> known;
  for (const auto& slot : before.slots_) known.emplace(slot->identity(), slot.get());
  for (const auto& slot : slots_) {
    if (const auto found = known.find(slot->identity()); found != known.end()) {
      slot->TakeOver(*found->second);
    }
  }
}

std::vector<std::string> WrappedModel::LocalGradients() const {
  std::vector<std::string> names;
  for (const auto& slot : slots_) {
    if ((slot->is_dirty || !when_ready_) && slot->has_gradient()) names.push_back(slot->name());
  }
  return names;
}

std::vector<Slot*> WrappedModel::Named(const std::vector<std::string>& names) const {
  const std::set<std::string> named(names.begin(), names.end());
  std::vector<Slot*> slots;
  for (const auto& slot : slots_) {
    if (named.contains(slot->name())) slots.push_back(slot.get());
  }
  return slots;
}

void WrappedModel::MarkLocal(const std::vector<std::string>& names) {
  for (Slot* const slot : Named(names)) slot->is_dirty = true;
}

absl::Status WrappedModel::CheckLocalGradients(const std::vector<std::string>& names) const {
  for (const Slot* const slot : Named(names)) RETURN_IF_ERROR(CheckNoSum(*slot));
  return absl::OkStatus();
}

std::vector<std::vector<std::string>> WrappedModel::Buckets() const {
  return owned_ == nullptr ? std::vector<std::vector<std::string>>() : port().Buckets();
}

std::vector<WrappedModel::FlatGradients> WrappedModel::FlatBuckets() const {
  std::vector<FlatGradients> buckets;
  if (owned_ == nullptr || !when_ready_ || !momenta_.empty()) return buckets;
  for (const ModelPort::FlatPart& part : port().FlatParts()) {
    FlatGradients& bucket = buckets.emplace_back();
    const auto options = at::TensorOptions().dtype(ToScalarType(part.dtype)).device(device_);
    // Not an owner: a tensor that somebody keeps must not keep the rounds alive.
    bucket.first = at::from_blob(
        part.data, {static_cast<int64_t>(part.count)}, {1}, [](void*) {}, options, device_);
    for (const auto& [slot, begin] : part.slots) {
      if (!at(slot).is_staged()) bucket.second.emplace_back(at(slot).name(), begin);
    }
  }
  return buckets;
}

absl::StatusOr<ModelState> WrappedModel::State() {
  if (when_ready_) RETURN_IF_ERROR(CheckRound());
  return port().State();
}

ModelPort::Statistics WrappedModel::statistics() const {
  ModelPort::Statistics statistics;
  if (owned_ != nullptr) statistics = port().statistics();
  if (!when_ready_) return statistics;
  for (const auto& slot : slots_) statistics.copied_bytes += slot->copied_bytes();
  return statistics;
}

}  // namespace pelton::torch_bindings
