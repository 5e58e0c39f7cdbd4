// What happens to a bucket in a round: its stages, and in which rounds they run.
#ifndef PELTON_CORE_PIPELINE_PIPELINE_H_
#define PELTON_CORE_PIPELINE_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/pipeline/stage.h"

namespace pelton {

// The parts of a pipeline, to be checked by Pipeline::Build. The stages run in the channel, from
// when the bucket's last tensor is marked ready, and change nothing but the bucket and their state;
// what becomes of the result is for a round that is complete (COMMIT-1).
struct PipelineSpec {
  std::vector<std::unique_ptr<Stage>> stages;
  // Runs in the rounds 1 + phase, 1 + phase + period and so on; in the others the bucket is
  // complete at once and holds what this rank put there.
  uint64_t period = 1;
  uint64_t phase = 0;
  std::vector<DType> dtypes;      // that the stages can work on; empty: all
  uint64_t alignment_count = 1;   // the flat part's count must be a multiple of it
  bool allows_standalone = true;  // whether the stages can work on several segments
  // Every rank gives zeros for what it has not used, and the result of a tensor that no rank has
  // used is not merged (core/round/round_usage.h); else every slot counts as used.
  bool finds_unused = false;
};

// The pipeline of one bucket, with the state that its stages keep.
// Threads: the channel's. Owns: stages and state.
class Pipeline {
 public:
  // Errors: InvalidArgument naming the reason, for a combination that cannot work: no stage, a
  // phase that is not below the period; a bucket whose dtype, alignment or segments the stages
  // cannot work on.
  static absl::StatusOr<Pipeline> Build(PipelineSpec spec, const BucketLayout& layout);
  Pipeline(Pipeline&&) = default;
  Pipeline& operator=(Pipeline&&) = default;

  uint64_t period() const { return spec_.period; }
  bool finds_unused() const { return spec_.finds_unused; }
  bool RunsIn(Round round) const {
    return (static_cast<uint64_t>(round.value()) - 1) % spec_.period == spec_.phase;
  }

  size_t stage_count() const { return spec_.stages.size(); }
  Stage& stage(size_t index) { return *spec_.stages[index]; }
  StageState* state(size_t index) { return states_[index].get(); }

  // Puts two stages that keep no state around all others.
  void Enclose(std::unique_ptr<Stage> first, std::unique_ptr<Stage> last);
  // Lets every stage fill its state; see Stage::Prime.
  void Prime(const BucketLayout& layout, const std::byte* flat);
  // COMMIT-1, for what the stages keep. KeepState copies it before a round that is to be all or
  // nothing; RestoreState makes it what it was then, CommitState lets it be what it has become.
  // Costs as much memory as the state has, from the first time on. No stage may run meanwhile.
  void KeepState();
  void RestoreState();
  void CommitState() { is_kept_ = false; }

 private:
  Pipeline(PipelineSpec spec, const BucketLayout& layout);

  PipelineSpec spec_;
  std::vector<std::unique_ptr<StageState>> states_;  // by stage
  std::vector<std::vector<std::byte>> kept_;         // of each of their buffers, in order
  bool is_kept_ = false;
};

// Makes the pipeline of each bucket; called once per bucket and generation.
using PipelineFactory = absl::AnyInvocable<absl::StatusOr<Pipeline>(const BucketLayout&)>;

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_PIPELINE_H_
