#include "core/pipeline/pipeline.h"

#include <memory>
#include <string>
#include <utility>

#include "core/pipeline/standard_stages.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// Threads: one. Owns: a number.
struct Counter final : StageState {
  absl::StatusOr<std::string> Save() const override { return std::string(1, 'n'); }
  absl::Status Load(absl::string_view) override { return absl::OkStatus(); }
  int value = 0;
};

// Does nothing, as a stage of any kind.
// Threads: one. Owns: its name.
class NamedStage final : public Stage {
 public:
  NamedStage(std::string name, StageKind kind) : name_(std::move(name)), kind_(kind) {}
  absl::string_view name() const override { return name_; }
  StageKind kind() const override { return kind_; }
  std::unique_ptr<StageState> MakeState(const BucketLayout&) const override {
    return std::make_unique<Counter>();
  }
  absl::Status Start(BucketRun&, StageState*) override { return absl::OkStatus(); }

 private:
  std::string name_;
  StageKind kind_;
};

template <typename... Kind>
PipelineSpec SpecOf(Kind... kinds) {
  PipelineSpec spec;
  (spec.stages.push_back(std::make_unique<NamedStage>(std::string(NameOf(kinds)), kinds)), ...);
  return spec;
}

BucketLayout LayoutOf(uint64_t flat_count) {
  BucketLayout layout;
  layout.id = BucketId(4);
  layout.flat_count = flat_count;
  return layout;
}

std::string ErrorOf(PipelineSpec spec, const BucketLayout& layout = LayoutOf(12)) {
  return Pipeline::Build(std::move(spec), layout).status().ToString();
}

TEST(PipelineTest, RefusesWhatCannotWorkAndSaysWhy) {
  EXPECT_THAT(ErrorOf(SpecOf()), HasSubstr("pipeline of bucket 4: no stage before"));
  EXPECT_THAT(ErrorOf(SpecOf(StageKind::kApply)), HasSubstr("no stage before"));
  EXPECT_THAT(ErrorOf(SpecOf(StageKind::kExchange, StageKind::kPrepare)),
              HasSubstr("'prepare' (prepare) comes after 'exchange'"));
  EXPECT_THAT(ErrorOf(SpecOf(StageKind::kExchange, StageKind::kExchange)),
              HasSubstr("more than one exchange"));
  PipelineSpec spec = SpecOf(StageKind::kExchange);
  spec.period = 0;
  EXPECT_THAT(ErrorOf(std::move(spec)), HasSubstr("period is 0"));
  spec = SpecOf(StageKind::kExchange);
  spec.dtypes = {DType::kInt32};
  EXPECT_THAT(ErrorOf(std::move(spec)), HasSubstr("cannot work on float32"));
  spec = SpecOf(StageKind::kExchange);
  spec.alignment_count = 8;
  EXPECT_THAT(ErrorOf(std::move(spec)), HasSubstr("12 elements are no multiple of 8"));
  spec = SpecOf(StageKind::kExchange);
  spec.allows_standalone = false;
  BucketLayout layout = LayoutOf(12);
  layout.standalone = {SlotId(1)};
  EXPECT_THAT(ErrorOf(std::move(spec), layout), HasSubstr("standalone tensors"));
  spec = SpecOf(StageKind::kExchange);
  spec.trigger = Trigger::kTimer;
  EXPECT_THAT(ErrorOf(std::move(spec)), HasSubstr("'timer'"));
}

TEST(PipelineTest, ApplyStagesRunApartUnlessAppliedNow) {
  Pipeline later = *Pipeline::Build(SpecOf(StageKind::kExchange, StageKind::kApply), LayoutOf(12));
  EXPECT_EQ(later.apply_begin(), 1u);
  EXPECT_EQ(later.Describe(), "exchange exchange, apply apply; applied post-backward");
  PipelineSpec spec = SpecOf(StageKind::kExchange, StageKind::kApply);
  spec.apply_point = ApplyPoint::kNow;
  EXPECT_EQ(Pipeline::Build(std::move(spec), LayoutOf(12))->apply_begin(), 2u);
}

TEST(PipelineTest, RunsInEveryPeriodThRound) {
  PipelineSpec spec = SpecOf(StageKind::kExchange);
  spec.period = 3;
  const Pipeline pipeline = *Pipeline::Build(std::move(spec), LayoutOf(12));
  EXPECT_FALSE(pipeline.RunsIn(Round(1)));
  EXPECT_FALSE(pipeline.RunsIn(Round(2)));
  EXPECT_TRUE(pipeline.RunsIn(Round(3)));
}

TEST(PipelineTest, StateMovesToAPipelineOfTheSameStages) {
  Pipeline old = *Pipeline::Build(SpecOf(StageKind::kExchange), LayoutOf(12));
  static_cast<Counter*>(old.state(0))->value = 7;
  Pipeline other = *Pipeline::Build(SpecOf(StageKind::kMerge), LayoutOf(12));
  EXPECT_FALSE(other.TakeStateFrom(old));
  Pipeline next = *Pipeline::Build(SpecOf(StageKind::kExchange), LayoutOf(12));
  EXPECT_TRUE(next.TakeStateFrom(old));
  EXPECT_EQ(static_cast<Counter*>(next.state(0))->value, 7);
  EXPECT_EQ(old.state(0), nullptr);
}

}  // namespace
}  // namespace pelton
