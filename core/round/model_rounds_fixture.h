// Ranks whose rounds a test drives, one call at a time.
#ifndef PELTON_CORE_ROUND_MODEL_ROUNDS_FIXTURE_H_
#define PELTON_CORE_ROUND_MODEL_ROUNDS_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/actor/sim_executor.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/pipeline/fake_world.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"
#include "gtest/gtest.h"

namespace pelton {

inline std::vector<TensorSpec> Tensors(int count, uint64_t elements) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back({absl::StrCat("t", i), DType::kFloat32, elements, {}});
  }
  return tensors;
}

inline Plan PlanOf(std::vector<TensorSpec> tensors, int32_t world_size, uint64_t bucket_bytes,
                   uint64_t standalone_bytes = PlanOptions::kNoStandalone) {
  PlanOptions options;
  options.world_size = WorldSize(world_size);
  options.bucket_size_bytes = bucket_bytes;
  options.standalone_bytes = standalone_bytes;
  return *Plan::Build(std::move(tensors), options);
}

inline absl::StatusOr<Pipeline> SumPipeline(const BucketLayout& layout) {
  PipelineSpec spec;
  spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
  spec.finds_unused = true;
  return Pipeline::Build(std::move(spec), layout);
}

// Ranks of a fake world under one simulated executor.
// Threads: one. Owns: all of it.
class ModelRoundsTest : public ::testing::Test {
 protected:
  void Start(const Plan& plan, int32_t world_size,
             absl::Duration timeout = limits::kDefaultOperationTimeout) {
    world_ = std::make_unique<FakeWorld>(world_size);
    for (int32_t rank = 0; rank < world_size; ++rank) {
      ModelRoundsOptions options;
      options.rank = Rank(rank);
      options.executor = &executor_;
      options.runner = &world_->runner(rank);
      options.pipeline_factory = SumPipeline;
      options.operation_timeout = timeout;
      options.on_failure = [this](const absl::Status& status) { failures_.push_back(status); };
      auto rounds = ModelRounds::Create(plan, std::move(options));
      ASSERT_TRUE(rounds.ok()) << rounds.status();
      ranks_.push_back(*std::move(rounds));
    }
  }

  // Writes `value` into every element and marks the slot.
  static absl::Status Produce(ModelRounds& rounds, SlotId slot, float value) {
    auto* data = reinterpret_cast<float*>(rounds.DataOf(slot));
    std::fill(data, data + rounds.plan().tensor(slot).count, value);
    return rounds.MarkReady(slot);
  }
  void ProduceAll(float base) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (int32_t slot = 0; slot < static_cast<int32_t>(ranks_[rank]->plan().slots().size());
           ++slot) {
        ASSERT_TRUE(Produce(*ranks_[rank], SlotId(slot), base + static_cast<float>(rank)).ok());
      }
    }
  }
  static float First(const ModelRounds& rounds, SlotId slot) {
    return *reinterpret_cast<const float*>(rounds.ResultOf(slot).data);
  }
  absl::Time In(absl::Duration duration) const { return executor_.Now() + duration; }

  SimExecutor executor_{1};
  std::unique_ptr<FakeWorld> world_;
  std::vector<absl::Status> failures_;  // outlives the ranks that report
  std::vector<std::unique_ptr<ModelRounds>> ranks_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_MODEL_ROUNDS_FIXTURE_H_
