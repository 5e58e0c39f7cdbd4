#include "core/pipeline/pipeline.h"

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/pipeline/standard_stages.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// Does nothing but keep a copy of what it is primed with.
// Threads: one. Owns: its name.
class NamedStage final : public Stage {
 public:
  explicit NamedStage(std::string name) : name_(std::move(name)) {}
  absl::string_view name() const override { return name_; }
  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    auto state = std::make_unique<FlatState>();
    state->Add({.name = "copy", .begins_as_weights = true, .count = layout.flat_count});
    state->Add({.name = "zeros", .count = layout.flat_count});
    return state;
  }
  absl::Status Start(BucketRun&, StageState*) override { return absl::OkStatus(); }

 private:
  std::string name_;
};

template <typename... Name>
PipelineSpec SpecOf(Name... names) {
  PipelineSpec spec;
  (spec.stages.push_back(std::make_unique<NamedStage>(names)), ...);
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
  EXPECT_THAT(ErrorOf(SpecOf()), HasSubstr("pipeline of bucket 4: it has no stages"));
  PipelineSpec spec = SpecOf("exchange");
  spec.period = 0;
  EXPECT_THAT(ErrorOf(std::move(spec)), HasSubstr("phase is 0, not below its period, 0"));
  spec = SpecOf("exchange");
  spec.dtypes = {DType::kInt32};
  EXPECT_THAT(ErrorOf(std::move(spec)), HasSubstr("cannot work on float32"));
  spec = SpecOf("exchange");
  spec.alignment_count = 8;
  EXPECT_THAT(ErrorOf(std::move(spec)), HasSubstr("12 elements are no multiple of 8"));
  spec = SpecOf("exchange");
  spec.allows_standalone = false;
  BucketLayout layout = LayoutOf(12);
  layout.standalone = {SlotId(1)};
  EXPECT_THAT(ErrorOf(std::move(spec), layout), HasSubstr("standalone tensors"));
}

TEST(PipelineTest, RunsInEveryPeriodThRoundFromItsPhaseOn) {
  const auto rounds_of = [](uint64_t phase) {
    PipelineSpec spec = SpecOf("exchange");
    spec.period = 3;
    spec.phase = phase;
    const Pipeline pipeline = *Pipeline::Build(std::move(spec), LayoutOf(12));
    std::vector<int> rounds;
    for (int round = 1; round <= 6; ++round) {
      if (pipeline.RunsIn(Round(round))) rounds.push_back(round);
    }
    return rounds;
  };
  EXPECT_EQ(rounds_of(0), (std::vector<int>{1, 4}));
  EXPECT_EQ(rounds_of(2), (std::vector<int>{3, 6}));
}

TEST(PipelineTest, PrimesTheStateOfEveryStage) {
  Pipeline pipeline = *Pipeline::Build(SpecOf("exchange", "merge"), LayoutOf(12));
  const std::vector<float> flat(12, 7);
  pipeline.Prime(LayoutOf(12), reinterpret_cast<const std::byte*>(flat.data()));
  for (size_t stage = 0; stage < 2; ++stage) {
    const StateBuffer& copy = pipeline.state(stage)->buffers()[0];
    EXPECT_EQ(copy.name, "copy");
    EXPECT_EQ(std::memcmp(copy.data, flat.data(), 12 * sizeof(float)), 0);
    EXPECT_EQ(*reinterpret_cast<const float*>(pipeline.state(stage)->buffers()[1].data), 0);
  }
}

TEST(PipelineTest, EncloseLeavesEachStageItsState) {
  Pipeline pipeline = *Pipeline::Build(SpecOf("transform", "exchange"), LayoutOf(12));
  const std::vector<StageState*> states = {pipeline.state(0), pipeline.state(1)};
  pipeline.Enclose(std::make_unique<NamedStage>("first"), std::make_unique<NamedStage>("last"));
  ASSERT_EQ(pipeline.stage_count(), 4u);
  EXPECT_EQ(pipeline.stage(0).name(), "first");
  EXPECT_EQ(pipeline.stage(1).name(), "transform");
  EXPECT_EQ(pipeline.stage(2).name(), "exchange");
  EXPECT_EQ(pipeline.stage(3).name(), "last");
  EXPECT_EQ(pipeline.state(0), nullptr);
  EXPECT_EQ(pipeline.state(1), states[0]);
  EXPECT_EQ(pipeline.state(2), states[1]);
  EXPECT_EQ(pipeline.state(3), nullptr);
}

TEST(PipelineTest, RefusesADeviceWhereAStageNeedsTheHost) {
  PipelineSpec spec;
  spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
  BucketLayout layout = LayoutOf(12);
  layout.device = {DeviceKind::kCuda, 1};
  EXPECT_EQ(ErrorOf(std::move(spec), layout), "OK");
  spec = SpecOf("exchange");
  spec.stages.insert(spec.stages.begin(), MakeAllReduceStage(ReduceOp::kSum));
  EXPECT_THAT(ErrorOf(std::move(spec), layout),
              HasSubstr("stage 'exchange' cannot work on cuda memory"));
}

TEST(PipelineTest, AnExceptionIsTheStagesError) {
  const auto status_of = [](auto thrown) {
    try {
      throw thrown;
    } catch (...) {
      return ExceptionIn("codec");
    }
  };
  EXPECT_EQ(status_of(std::runtime_error("no room")),
            absl::InternalError("exception in stage 'codec': no room"));
  EXPECT_EQ(status_of(7), absl::InternalError("exception in stage 'codec': of unknown type"));
}

// Of several stages, each with several arrays of several sizes.
TEST(PipelineTest, AllStatesAreKeptApart) {
  Pipeline pipeline = *Pipeline::Build(SpecOf("transform", "exchange"), LayoutOf(12));
  for (size_t stage = 0; stage < 2; ++stage) {
    auto& state = static_cast<FlatState&>(*pipeline.state(stage));
    state.Add({.name = "bytes", .dtype = DType::kUInt8, .count = 5 + stage});
    EXPECT_EQ(state.buffers()[2].data, state.data(2));
  }
  pipeline.Enclose(std::make_unique<NamedStage>("first"), std::make_unique<NamedStage>("last"));
  const auto fill = [&pipeline](int value) {
    for (size_t stage : {1, 2}) {
      for (const StateBuffer& buffer : pipeline.state(stage)->buffers()) {
        std::memset(buffer.data, value++, buffer.count * SizeOf(buffer.dtype));
      }
    }
  };
  const auto expect_filled = [&pipeline](int value) {
    for (size_t stage : {1, 2}) {
      for (const StateBuffer& buffer : pipeline.state(stage)->buffers()) {
        const std::vector<std::byte> expected(buffer.count * SizeOf(buffer.dtype),
                                              static_cast<std::byte>(value++));
        EXPECT_EQ(std::memcmp(buffer.data, expected.data(), expected.size()), 0);
      }
    }
  };
  fill(10);
  pipeline.KeepState();
  fill(20);
  pipeline.RestoreState();
  expect_filled(10);
  fill(30);
  pipeline.RestoreState();  // nothing is kept any more
  expect_filled(30);
  pipeline.KeepState();
  fill(40);
  pipeline.KeepState();  // the newest counts
  fill(50);
  pipeline.RestoreState();
  expect_filled(40);
}

TEST(PipelineTest, StateThatWasKeptIsRestoredUntilItIsCommitted) {
  Pipeline pipeline = *Pipeline::Build(SpecOf("exchange"), LayoutOf(12));
  auto* const first = reinterpret_cast<float*>(pipeline.state(0)->buffers()[0].data);
  pipeline.KeepState();
  *first = 1;
  pipeline.RestoreState();
  EXPECT_EQ(*first, 0);
  pipeline.KeepState();
  *first = 2;
  pipeline.CommitState();
  pipeline.RestoreState();
  EXPECT_EQ(*first, 2);
}

}  // namespace
}  // namespace pelton
