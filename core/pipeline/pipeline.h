// What happens to a bucket in a round: its trigger, its stages and where the result is applied.
#ifndef PELTON_CORE_PIPELINE_PIPELINE_H_
#define PELTON_CORE_PIPELINE_PIPELINE_H_

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

enum class Trigger : uint8_t { kBucketReady, kForward, kTimer, kUserCall };
enum class ApplyPoint : uint8_t { kNow, kPostBackward, kPostStep, kPreForward };
absl::string_view NameOf(Trigger trigger);
absl::string_view NameOf(ApplyPoint point);

// The parts of a pipeline, to be checked by Pipeline::Build. Stages come in the order of StageKind;
// prepare to merge run in the channel, the apply stages at the apply point, once every bucket of
// the round is complete there (COMMIT-1).
struct PipelineSpec {
  Trigger trigger = Trigger::kBucketReady;
  std::vector<std::unique_ptr<Stage>> stages;
  ApplyPoint apply_point = ApplyPoint::kPostBackward;
  uint64_t period = 1;            // runs in every period-th round; in the others the bucket is
                                  // complete at once and holds what this rank put there
  std::vector<DType> dtypes;      // that the stages can work on; empty: all
  uint64_t alignment_count = 1;   // the flat part's count must be a multiple of it
  bool allows_standalone = true;  // whether the stages can work on several segments
  // After its last stage the used tail tells who used what; else every slot counts as used.
  bool yields_used_tail = false;
};

// The pipeline of one bucket, with the state that its stages keep.
// Threads: the channel's; apply stages by one thread at a time. Owns: stages and state.
class Pipeline {
 public:
  // Errors: InvalidArgument naming the reason, for a combination that cannot work: no stage before
  // the apply stages, kinds out of order, more than one exchange, a period of 0; a bucket whose
  // dtype, alignment or segments the stages cannot work on.
  static absl::StatusOr<Pipeline> Build(PipelineSpec spec, const BucketLayout& layout);
  Pipeline(Pipeline&&) = default;
  Pipeline& operator=(Pipeline&&) = default;

  Trigger trigger() const { return spec_.trigger; }
  ApplyPoint apply_point() const { return spec_.apply_point; }
  uint64_t period() const { return spec_.period; }
  bool yields_used_tail() const { return spec_.yields_used_tail; }
  bool RunsIn(Round round) const { return round.value() % spec_.period == 0; }

  // Stages before `apply_begin()` run in the channel, the others at the apply point; all in the
  // channel when that is now.
  size_t stage_count() const { return spec_.stages.size(); }
  size_t apply_begin() const { return apply_begin_; }
  Stage& stage(size_t index) { return *spec_.stages[index]; }
  StageState* state(size_t index) { return states_[index].get(); }

  // Takes over the state of `old`'s stages of the same name; false, and nothing taken, if the
  // stages differ. For a bucket whose layout is the same in the next generation.
  bool TakeStateFrom(Pipeline& old);
  // "prepare pack, exchange allreduce; applied post-backward".
  std::string Describe() const;

 private:
  Pipeline(PipelineSpec spec, const BucketLayout& layout);

  PipelineSpec spec_;
  std::vector<std::unique_ptr<StageState>> states_;  // by stage
  size_t apply_begin_ = 0;
};

// Makes the pipeline of each bucket; called once per bucket and generation.
using PipelineFactory = absl::AnyInvocable<absl::StatusOr<Pipeline>(const BucketLayout&)>;

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_PIPELINE_H_
