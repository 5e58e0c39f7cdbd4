// What is done to one bucket in a round: stages, and the pipeline that runs them one after the
// other.
#ifndef PELTON_CORE_PIPELINE_PIPELINE_H_
#define PELTON_CORE_PIPELINE_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/memory/dtype.h"
#include "core/pipeline/operation.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "core/plan/round_mode.h"

namespace pelton {

// Whose the elements of a state are, which decides what becomes of them when a group of another
// size goes on from it (core/round/model_state.h).
enum class StateScope : uint8_t {
  kCommon,    // all ranks' alike, bitwise: anchors, momenta of means
  kOwn,       // this rank's, of which the mean over the ranks that keep it counts: residuals
  kReplica,   // copies of weights, its own or its neighbours': Stage::Prime makes them
  kShared,    // of each element one rank keeps the only one: the server's part of an exchange
  kPassedOn,  // what was kShared in another group, whole on each rank until a round delivers it
};

// Elements that a stage keeps beside those of a bucket's flat part, one each.
// Threads: a value. Owns: nothing.
struct StateBuffer {
  absl::string_view name;  // unique in its stage: "residual"
  DType dtype = DType::kFloat32;
  StateScope scope = StateScope::kOwn;
  bool begins_as_weights = false;  // those of its elements, in the bucket's dtype (Stage::Prime)
  uint64_t begin_count = 0;        // the flat part's element that the first one belongs to
  uint64_t count = 0;
  std::byte* data = nullptr;
};

// What a stage keeps of a bucket from round to round: error feedback, peer weights, momentum. It is
// saved, and taken along to another plan, tensor by tensor (core/round/slot_state.h); FlatState
// serves most stages.
// Threads: its stage's. Owns: what its subclass says.
class StageState {
 public:
  virtual ~StageState() = default;
  // The same list each time; the elements may be read and written between rounds.
  virtual absl::Span<const StateBuffer> buffers() const = 0;
};

// A bucket in one round, as its stages see it. Where its memory is a device's, what stages launch
// and fill runs in the order of the device's stream, and done means: done in that order.
// Threads: the channel's. Owns: nothing.
class BucketRun {
 public:
  BucketRun(const Plan& plan, const BucketLayout& layout, BucketStorage& storage,
            const ReadyTracker& tracker, OperationRunner& runner, Round round)
      : plan_(&plan),
        layout_(&layout),
        storage_(&storage),
        tracker_(&tracker),
        runner_(&runner),
        round_(round) {}

  // Before the first stage: on a device the bucket's tensors come before what follows.
  absl::Status Begin();

  const Plan& plan() const { return *plan_; }
  const BucketLayout& layout() const { return *layout_; }
  BucketStorage& storage() const { return *storage_; }
  Round round() const { return round_; }
  RoundMode mode() const { return tracker_->mode(); }
  SegmentList segments() const { return storage_->SegmentsOf(layout_->id); }
  bool UsedHere(SlotId slot) const { return tracker_->UsedHere(slot); }
  // The first element of the bucket's flat part; null if it has none.
  std::byte* flat() const { return storage_->FlatOf(layout_->id); }
  uint64_t flat_size_bytes() const { return layout_->flat_count * SizeOf(layout_->dtype); }
  // Null where the bucket is in the host's memory.
  DeviceQueue* device() const { return storage_->device(); }

  // Launches for this bucket; what ranks launch, and in which order, must not depend on the rank
  // (ORDER-1). `operation.communicator` chooses among the tiers of a group (comm/tiers.h); as it
  // is made, it is the one with all ranks. Blocks: never. Errors: those of OperationRunner::Launch;
  // ResourceExhausted: try again in the next Advance.
  absl::StatusOr<Completion> Launch(Operation operation);
  OperationRunner::State Query(Completion completion);
  // On which whoever drives the bucket may be parked. Stages launch by Launch alone.
  OperationRunner& runner() const { return *runner_; }

  // Whether everything launched is done, in whichever way: before that the bucket's memory is the
  // runner's (OWN-1).
  bool Drained();
  // The operation launched last, unless it has ended well: a device is still at it, or it has
  // failed.
  std::optional<Completion> OnDevice();

  // For reports: the operation launched last (of no meaning before the first), and how many were.
  const Operation& last_operation() const { return last_operation_; }
  uint64_t launch_count() const { return launch_count_; }
  // Whether an operation failed because the ranks' operations differ, which all ranks know.
  bool disagreed() const { return disagreed_; }

 private:
  void PruneFinished();
  Stream& stream();

  const Plan* plan_;
  const BucketLayout* layout_;
  BucketStorage* storage_;
  const ReadyTracker* tracker_;
  OperationRunner* runner_;
  Round round_;
  HostStream host_stream_;
  absl::InlinedVector<Completion, 4> in_flight_;
  Completion last_;
  Operation last_operation_;
  uint64_t launch_count_ = 0;
  bool disagreed_ = false;
};

// One object serves one bucket; the channel calls Start and then Advance until it is done. It never
// blocks: a stage whose work may block is a BlockingStage (core/round/blocking_stage.h). What
// outlives a round belongs into the StageState that it declares.
// Threads: the channel's. Owns: its scratch.
class Stage {
 public:
  virtual ~Stage() = default;
  virtual absl::string_view name() const = 0;
  // Whether it leaves a bucket's memory to operations and the device's queue, so that the bucket
  // may lie on a device.
  virtual bool takes_device_memory() const { return false; }

  // The state that it keeps for a bucket; null if none. It comes back in `state` below.
  virtual std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const {
    return nullptr;
  }

  // Fills a new state from what all ranks hold before the first round, where the state is made of
  // that: `flat` is the bucket's flat part. Weights have such a value, gradients do not. As it is,
  // it fills the buffers that say so.
  virtual void Prime(const BucketLayout& layout, const std::byte* flat, StageState& state) const;

  // Begins. Blocks: never. Errors end the bucket's round; operations in flight are waited for.
  virtual absl::Status Start(BucketRun& run, StageState* state) = 0;
  // True once done. Called again after progress. Blocks: never. Errors: as Start.
  virtual absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) { return true; }
  // Whether all that it launches in this round has been launched, so that another bucket's
  // operations may follow while it waits for its own. Asked between Start and the end.
  virtual bool has_launched_all() const { return false; }
  // Whether what it has called on another thread goes on, which no abort ends
  // (core/round/blocking_stage.h).
  virtual bool has_call_under_way() const { return false; }
  // The round ends without that call: where it has not begun it is not made.
  virtual void DropCall() {}
};

// What becomes of an exception that a stage's code has thrown. Called in a catch clause alone.
absl::Status ExceptionIn(absl::string_view stage);

// A stage that leaves to another one what a subclass does not change. All launches count as to
// come, because what the other one says of them holds for rounds in which it runs; and the bucket
// stays in the host's memory unless the subclass says more. Threads: as Stage. Owns: the other
// stage.
class ForwardingStage : public Stage {
 public:
  explicit ForwardingStage(std::unique_ptr<Stage> stage) : stage_(std::move(stage)) {}
  absl::string_view name() const override { return stage_->name(); }
  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    return stage_->MakeState(layout);
  }
  void Prime(const BucketLayout& layout, const std::byte* flat, StageState& state) const override {
    stage_->Prime(layout, flat, state);
  }
  absl::Status Start(BucketRun& run, StageState* state) override {
    return stage_->Start(run, state);
  }
  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    return stage_->Advance(run, state);
  }

 protected:
  const Stage& wrapped() const { return *stage_; }

 private:
  const std::unique_ptr<Stage> stage_;
};

// The state that most stages keep: arrays beside a bucket's flat part.
// Threads: as StageState. Owns: the arrays.
class FlatState final : public StageState {
 public:
  FlatState() = default;
  // Arrays of `dtype` beside the whole flat part of `layout`, filled with zeros. The names outlive
  // the state: literals.
  FlatState(const BucketLayout& layout, DType dtype, std::initializer_list<absl::string_view> names,
            StateScope scope = StateScope::kOwn) {
    for (absl::string_view name : names) {
      Add({.name = name, .dtype = dtype, .scope = scope, .count = layout.flat_count});
    }
  }

  // Adds zeros, as `buffer` describes them but for its data.
  void Add(StateBuffer buffer);

  absl::Span<const StateBuffer> buffers() const override { return buffers_; }
  // The elements of the array added as number `index`.
  std::byte* data(size_t index) const { return buffers_[index].data; }

 private:
  std::vector<StateBuffer> buffers_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
};

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
  // Every rank gives zeros, or what all ranks hold already (ReadyTracker::MarkUnused), for what it
  // has not used, and the result of a tensor that no rank has used is not merged, nor does what the
  // stages keep of it change (core/round/plan_instance.h); else every slot counts as used.
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
  // What no rank uses leaves the state as it is, where the pipeline finds that: its result is not
  // merged, and so what an exchange has noted of it has not come to pass. KeepUnused copies, before
  // the round, what the stages keep of the slots that this rank has not used; PutBackUnused, after
  // it, makes that what it was then, of slots that no other rank has used either.
  void KeepUnused(const BucketRun& run);
  void PutBackUnused(absl::FunctionRef<bool(SlotId)> is_used_elsewhere);

 private:
  // Of one slot and one buffer. Threads: a value. Owns: a copy.
  struct UnusedState {
    SlotId slot;
    std::byte* data;
    std::vector<std::byte> copy;
  };

  Pipeline(PipelineSpec spec, const BucketLayout& layout);
  void KeepUnused(SlotId slot, uint64_t slot_begin, uint64_t slot_end);

  PipelineSpec spec_;
  std::vector<std::unique_ptr<StageState>> states_;  // by stage
  std::vector<std::vector<std::byte>> kept_;         // of each of their buffers, in order
  bool is_kept_ = false;
  std::vector<UnusedState> unused_;
};

// Makes the pipeline of each bucket; called once per bucket and generation.
using PipelineFactory = absl::AnyInvocable<absl::StatusOr<Pipeline>(const BucketLayout&)>;

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_PIPELINE_H_
