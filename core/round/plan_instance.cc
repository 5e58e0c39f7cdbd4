#include "core/round/plan_instance.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/dtype.h"
#include "core/memory/region.h"

namespace pelton {
namespace {

constexpr uint8_t kUsed = 1;

SlotId SlotAt(size_t index) { return SlotId(static_cast<int32_t>(index)); }

}  // namespace

// Launches and does not wait, so that the operation is in flight with those of the bucket.
// Threads: as Stage. Owns: nothing.
class RoundUsage::LaunchStage final : public Stage {
 public:
  explicit LaunchStage(RoundUsage& usage) : usage_(usage) {}
  absl::string_view name() const override { return "launch usage"; }
  bool takes_device_memory() const override { return true; }

  absl::Status Start(BucketRun& run, StageState*) override {
    usage_.batch_.Clear();
    RETURN_IF_ERROR(usage_.Fill(run));
    usage_.batch_.Add(usage_.Maximum());
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    RETURN_IF_ERROR(usage_.batch_.Advance(run).status());
    return usage_.batch_.has_launched_all();
  }

 private:
  RoundUsage& usage_;
};

// Threads: as Stage. Owns: nothing.
class RoundUsage::AwaitStage final : public Stage {
 public:
  explicit AwaitStage(RoundUsage& usage) : usage_(usage) {}
  absl::string_view name() const override { return "await usage"; }
  bool takes_device_memory() const override { return true; }

  absl::Status Start(BucketRun&, StageState*) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    const absl::StatusOr<bool> done = usage_.batch_.Advance(run);
    if (done.ok()) return done;
    return Annotate(done.status(), "the exchange of which tensors any rank has used");
  }
  bool has_launched_all() const override { return true; }

 private:
  RoundUsage& usage_;
};

absl::StatusOr<std::unique_ptr<RoundUsage>> RoundUsage::Create(size_t slot_count,
                                                               DeviceQueue* device) {
  std::unique_ptr<RoundUsage> usage(new RoundUsage(slot_count, device));
  if (device != nullptr) {
    ASSIGN_OR_RETURN(usage->on_device_, device->Allocate(slot_count));
  }
  return usage;
}

RoundUsage::~RoundUsage() {
  if (on_device_ != nullptr) device_->Release(on_device_);
}

absl::Status RoundUsage::AddWhereWanted(PlanInstance& instance, DeviceQueue* device) {
  std::vector<Pipeline>& pipelines = instance.pipelines;
  const auto finds_unused = [](const Pipeline& pipeline) { return pipeline.finds_unused(); };
  if (std::none_of(pipelines.begin(), pipelines.end(), finds_unused)) return absl::OkStatus();
  if (pipelines.back().period() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(instance.plan.Describe(instance.plan.buckets().back().id),
                     ": its pipeline has a period of ", pipelines.back().period(),
                     "; the last bucket of a plan that finds unused tensors runs in every round"));
  }
  ASSIGN_OR_RETURN(instance.usage, Create(instance.plan.slots().size(), device));
  pipelines.back().Enclose(std::make_unique<LaunchStage>(*instance.usage),
                           std::make_unique<AwaitStage>(*instance.usage));
  return absl::OkStatus();
}

absl::Status RoundUsage::Fill(const BucketRun& run) {
  if (device_ != nullptr) RETURN_IF_ERROR(device_->Fill(on_device_, kUsed, used_.size()));
  for (size_t i = 0; i < used_.size(); ++i) {
    const bool is_used = run.UsedHere(SlotAt(i));
    used_[i] = std::byte{is_used ? kUsed : uint8_t{0}};
    if (device_ == nullptr || is_used) continue;
    RETURN_IF_ERROR(device_->Fill(on_device_ + i, 0, 1));
  }
  return absl::OkStatus();
}

Operation RoundUsage::Maximum() {
  const Location bytes = Locate(device_ == nullptr ? used_.data() : on_device_, used_.size());
  return AllReduceOf(ReduceOp::kMax, DType::kUInt8, used_.size(), bytes);
}

absl::Status RoundUsage::Fetch(const ReadyTracker& tracker, absl::Time deadline) {
  if (device_ == nullptr) return absl::OkStatus();
  bool has_unused = false;
  for (size_t i = 0; i < used_.size(); ++i) has_unused |= !tracker.UsedHere(SlotAt(i));
  if (!has_unused) return absl::OkStatus();
  return device_->Read(used_.data(), on_device_, used_.size(), deadline);
}

void PlanInstance::PutBackUnused(Round round) {
  for (Pipeline& pipeline : pipelines) {
    if (!pipeline.RunsIn(round)) continue;  // what an earlier round has kept, and failed
    pipeline.PutBackUnused([this](SlotId slot) { return usage->UsedElsewhere(slot); });
  }
}

}  // namespace pelton
