// How a model's plan changes between rounds: to the order in which tensors become ready, and to the
// bucket sizes that tuning tries.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backend/model_port.h"
#include "core/actor/wait_hook.h"
#include "core/base/status.h"
#include "core/plan/plan.h"

namespace pelton {

absl::Status ModelPort::AdoptOrder() {
  if (order_is_adopted_ && tuning_ == nullptr) return absl::OkStatus();
  const absl::Time deadline = WaitClock().Now() + options_.timeout;
  if (!std::exchange(order_is_adopted_, true)) {
    ASSIGN_OR_RETURN(std::vector<SlotId> order, rounds().AgreeOnOrder(deadline));
    RETURN_IF_ERROR(MoveTo(order, std::nullopt, deadline));
    if (wants_tuning_.has_value()) BeginTuning(std::move(order));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::optional<uint64_t> bucket_size_bytes, tuning_->Agreed(deadline));
  if (bucket_size_bytes.has_value()) {
    RETURN_IF_ERROR(MoveTo(tuning_->order(), bucket_size_bytes, deadline));
  }
  if (tuning_->is_over()) tuning_.reset();
  return absl::OkStatus();
}

absl::Status ModelPort::MoveTo(absl::Span<const SlotId> order,
                               std::optional<uint64_t> bucket_size_bytes, absl::Time deadline) {
  for (SlotId slot : order) tensors_.Release(slot);
  RETURN_IF_ERROR(bucket_size_bytes.has_value()
                      ? rounds().Resize(order, *bucket_size_bytes, deadline)
                      : rounds().Replan(order, deadline));
  PlaceAll();
  return absl::OkStatus();
}

absl::Status ModelPort::CheckTunable() const {
  const auto refusal = [this](absl::string_view why) {
    return absl::UnimplementedError(absl::StrCat("autotune: the bucket size of model '",
                                                 options_.name, "' cannot be tuned under ",
                                                 options_.algorithm, " because ", why));
  };
  if (schedule_.trigger != TriggerKind::kWhenReady) {
    return refusal("its rounds are not in backward passes; leave autotune out for it");
  }
  for (const TensorSpec& tensor : rounds().plan().tensors()) {
    if (tensor.device.kind != DeviceKind::kHost) {
      return refusal(
          "its buckets are in a GPU's memory; choose the size by hand, with "
          "BAGUA_DEFAULT_BUCKET_SIZE");
    }
    if (!model_->algorithm().EqualsReduction(tensor.dtype).has_value()) {
      return refusal(absl::StrCat("results would change with the buckets: what tensor '",
                                  tensor.name,
                                  "' becomes depends on those that lie beside it; "
                                  "choose the size by hand, with BAGUA_DEFAULT_BUCKET_SIZE"));
    }
  }
  return absl::OkStatus();
}

absl::Status ModelPort::Tune(std::string csv_path) {
  RETURN_IF_ERROR(failure_);
  RETURN_IF_ERROR(CheckTunable());
  if (is_open_) {
    return absl::FailedPreconditionError(
        absl::StrCat("autotune: round ", rounds().round().value(), " of model '", options_.name,
                     "' is open; call it between steps, on all ranks"));
  }
  PlanTuningOptions tuning;
  tuning.model_name = options_.name;
  tuning.decides = model_->rank() == Rank(0);
  tuning.csv_path = std::move(csv_path);
  wants_tuning_ = std::move(tuning);
  if (!order_is_adopted_) return absl::OkStatus();
  std::vector<SlotId> order;
  for (const BucketLayout& bucket : rounds().plan().buckets()) {
    order.insert(order.end(), bucket.slots.begin(), bucket.slots.end());
  }
  BeginTuning(std::move(order));
  return absl::OkStatus();
}

void ModelPort::EndTuning() {
  wants_tuning_.reset();
  tuning_.reset();
}

void ModelPort::BeginTuning(std::vector<SlotId> order) {
  tuning_ = std::make_unique<PlanTuning>(rounds(), std::move(order), *std::move(wants_tuning_));
  wants_tuning_.reset();
  if (tuning_->is_over()) tuning_.reset();
}

}  // namespace pelton
