// The rounds of one model: everything between a tensor that is ready and a result that may be read.
#ifndef PELTON_CORE_ROUND_MODEL_ROUNDS_H_
#define PELTON_CORE_ROUND_MODEL_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/promise.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/base/moving_deadline.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"
#include "core/plan/round_mode.h"
#include "core/round/round_sight.h"
#include "core/round/slot_state.h"
#include "core/trace/trace.h"

namespace pelton {

class Executor;

// Threads: a value, moved into Create. Owns: its callbacks.
struct ModelRoundsOptions {
  std::string model_name = "model";  // for reports
  Rank rank;                         // for reports
  // Runs the scheduler; outlives the rounds. Null: a thread of the rounds' own, which parks on the
  // runner. Any other should park on the runner as well while the scheduler waits for peers.
  Executor* executor = nullptr;
  // Is told when the scheduler's actor fails, and may end before it; may be nobody.
  ActorRef<Actor> parent;
  // A traffic class of its own: nothing else launches on it. Outlives the rounds.
  OperationRunner* runner = nullptr;
  // Where the buckets lie; null: in the host's memory. Outlives the rounds.
  DeviceQueue* device = nullptr;
  PipelineFactory pipeline_factory;
  // Make the bucket storage known to the peers and forget it again; may be empty.
  absl::AnyInvocable<absl::Status(const Region&)> register_region;
  absl::AnyInvocable<void(RegionId)> deregister_region;
  absl::Duration operation_timeout = limits::kDefaultOperationTimeout;
  Round first_round{1};  // of a model that goes on from a checkpoint
  // What the stages keep changes with a round that is complete on this rank, and else is bitwise
  // what it was (COMMIT-1). Costs the memory of that state once more and a copy of it each round;
  // worth it only where the model is used after a failure.
  bool commits_state = false;
  // Is shown each bucket, waiting and running. May be null; outlives the rounds.
  RangeViewer* viewer = nullptr;
  // While it stands, so do all deadlines. May be null; outlives the rounds.
  const Standstill* standstill = nullptr;
  // Hears of each failure once, in the scheduler's turn: a trainer that hangs elsewhere never asks.
  absl::AnyInvocable<void(const absl::Status&)> on_failure;
  // Hears of each round that opens, on the thread that closes the one before. Must not block.
  absl::AnyInvocable<void(Round)> on_round;
};

// What a slot holds after a round.
struct SlotResult {
  std::byte* data = nullptr;
  uint64_t size_bytes = 0;
  // Whether any rank used the tensor in that round; true as well when that is not known (see
  // PipelineSpec::finds_unused). When false every rank contributed zeros: leave `.grad` as it is.
  bool used_by_any = true;
};

// A round: MarkReady for each tensor as it comes, EndRound when no more will, WaitRound for the
// results, which are the caller's until its next MarkReady of that slot. Rounds do not overlap.
//
// The lifetime of a failure: when a round fails because its communication was aborted, this and
// every later WaitRound returns that reason; when the ranks merely disagreed (InvalidArgument), the
// next round is like any other.
//
// On a device all of this is in the order of streams, and the host waits for none of it: a mark
// says that the elements are final at the caller's place in its stream, and after WaitRound what
// the caller puts there comes after the results. An operation that fails later ends the rounds to
// come. The host waits only where this rank left slots unused, to learn whether another rank used
// them, where the plan changes, where the state is saved, and in AwaitDevice.
// Threads: MarkReady and Abort by any, also at once; all others by one thread at a time, and not at
// once with MarkReady. Owns: plan, storage and tracker, and what runs the rounds.
//
// An interface with two implementations: the rounds whose scheduler is in this process, which the
// waiting thread runs itself where it can, and those that a daemon runs (backend/link).
class ModelRounds {
 public:
  // Rounds whose scheduler is in this process. Errors: InvalidArgument: an option is missing; those
  // of the pipeline factory, the storage and register_region.
  static absl::StatusOr<std::unique_ptr<ModelRounds>> Create(Plan plan, ModelRoundsOptions options);
  // Stops the scheduler. Operations in flight are aborted. Blocks: at most limits::kStopTimeout.
  virtual ~ModelRounds() = default;
  ModelRounds(const ModelRounds&) = delete;
  ModelRounds& operator=(const ModelRounds&) = delete;

  virtual const Plan& plan() const = 0;
  // The round that is open, or has ended last; the first is ModelRoundsOptions::first_round.
  virtual Round round() const = 0;

  // Of the round that is open and of later ones, before its first mark. Where ranks differ in
  // whether they train or evaluate, the round ends in an error on all of them that says so, if the
  // transport compares operations. Before the buckets of a round in kCollecting comes a barrier of
  // all ranks, for which a rank waits as long as RoundDone's deadline allows.
  virtual void SetMode(RoundMode mode) = 0;

  // Where a flat slot's elements are to be written before MarkReady; for a standalone one the last
  // place named. Valid until Replan. Blocks: never.
  virtual std::byte* DataOf(SlotId slot) const = 0;

  // The slot's elements are final: in DataOf(slot), or, for a standalone slot, at `data`, memory
  // that must stay alive until WaitRound. They belong to the bucket from now on (OWN-1). Units: at
  // most 200 ns, but for the bucket's last slot, which sends one message. Blocks: never. Errors:
  // those of ReadyTracker::MarkReady.
  virtual absl::Status MarkReady(SlotId slot) = 0;
  virtual absl::Status MarkReady(SlotId slot, void* data) = 0;
  // As MarkReady, for a tensor that this rank did not use in this round, with elements that count
  // all the same: zeros, or what all ranks hold already. `data` is null unless the slot is
  // standalone.
  virtual absl::Status MarkUnused(SlotId slot, void* data) = 0;

  // Slots not marked in this round, in plan order. Those to which the caller has something to
  // contribute (a gradient that was there before) it writes and marks before EndRound.
  virtual std::vector<SlotId> UnmarkedSlots() const = 0;
  // No more marks in this round: what is not marked counts as unused and contributes zeros, so that
  // the round completes (ALL-1). Blocks: never. Errors: FailedPrecondition: ended already.
  virtual absl::Status EndRound() = 0;

  // Waits until every bucket is complete and opens the next round.
  // Blocks: until `deadline`. Errors: the first error of the round, naming rank, bucket, tensors
  // and operation; DeadlineExceeded: also names the ranks or, on this rank, the tensors that are
  // missing, and communication is aborted with it.
  virtual absl::Status WaitRound(absl::Time deadline) = 0;
  // WaitRound in two halves, for callers that must not block, such as actors: first the future of
  // the round, then CloseRound with what it gave, which returns what WaitRound would.
  virtual Future<void> RoundDone(absl::Time deadline) = 0;
  virtual absl::Status CloseRound(absl::Status status) = 0;
  // For a trainer that another one takes the place of in the middle of a round. Marks of buckets
  // that have not been released are as if they had not been; the others take their way. Gives the
  // buckets that are complete, whose slots stay marked and hold results; all others are to be
  // marked. While nobody marks or waits. Blocks: until what was released is complete, or
  // `deadline`. Errors: the round's; DeadlineExceeded: peers have not come; Unimplemented: a daemon
  // runs these rounds.
  virtual absl::StatusOr<std::vector<BucketId>> TakeBackMarks(absl::Time deadline) = 0;
  // Ends this round and all later ones with `reason`, here and on the peers; for news that come by
  // another way, such as the death of a peer. Threads: any. Blocks: never.
  virtual void Abort(const absl::Status& reason) = 0;

  // Whether the slot's bucket runs its pipeline in the open round. Where it does not, what the slot
  // holds after the round is what was there when it was marked.
  virtual bool Communicates(SlotId slot) const = 0;

  // Has every stage fill its state from what the buckets hold now, which must be the same on all
  // ranks. Before the first round. Blocks: until `deadline`. Errors: the rounds are out of reach.
  virtual absl::Status Prime(absl::Time deadline) = 0;
  // A copy of what the stages keep of each tensor, and its way back, which makes a checkpoint's
  // state this model's: what both have is taken over, tensor by tensor. Between rounds. Replan
  // takes the state along. Blocks: until `deadline`. Errors: the rounds are out of reach; of
  // SaveStates also what has failed on a device, after a round that was waited for.
  virtual absl::StatusOr<std::vector<SlotState>> SaveStates(absl::Time deadline) = 0;
  virtual absl::Status LoadStates(absl::Span<const SlotState> states, absl::Time deadline) = 0;
  // The memory of the flat parts, of the plan in force; null if no bucket has one.
  virtual const Region* region() const = 0;

  // Of the last round that WaitRound returned OK for, until the slot is marked anew. Blocks: never.
  virtual SlotResult ResultOf(SlotId slot) const = 0;

  // The slots in the order of their marks in the last round on this rank.
  virtual std::vector<SlotId> ReadyOrder() const = 0;
  // Begins to agree on rank 0's ReadyOrder, so that ranks may wait for several models' in any
  // order. Collective, between rounds. Blocks: for a copy to the device, where buckets are on one.
  // Errors: those of the device.
  absl::Status BeginOrder();
  // Rank 0's ReadyOrder, on every rank; collective, between rounds; begins what was not begun.
  // Blocks: until `deadline`. Errors: as WaitRound.
  absl::StatusOr<std::vector<SlotId>> AgreeOnOrder(absl::Time deadline);
  // The same for words of any meaning, as many on every rank: rank 0's, which all get. Begin* comes
  // first; one agreement at a time. Blocks, Errors: as those of BeginOrder and of AgreeOnOrder.
  virtual absl::Status BeginAgreement(std::vector<int32_t> words) = 0;
  virtual absl::StatusOr<std::vector<int32_t>> Agreed(absl::Time deadline) = 0;
  // Waits until no device is at operations of the rounds that were waited for: what they have made
  // is here, and not merely in the order of the streams. Blocks: until `deadline`; never where the
  // buckets are in the host's memory. Errors: what has failed on the device; DeadlineExceeded:
  // communication is aborted with it.
  virtual absl::Status AwaitDevice(absl::Time deadline) { return absl::OkStatus(); }
  // What the open round is at, for people. Threads: any, for as long as the rounds live. Blocks:
  // Look: until the scheduler's next turn, or `deadline`. Errors: DeadlineExceeded: it has none by
  // then, because a stage computes for that long; Unimplemented: a daemon runs these rounds and is
  // the one to be asked; those of a scheduler that has ended.
  virtual Future<RoundSight> RequestLook(absl::Time deadline) = 0;
  absl::StatusOr<RoundSight> Look(absl::Time deadline) {
    return RequestLook(deadline).Await(deadline);
  }
  // Of the buckets' rounds, where it is on.
  virtual BucketTimes& times() = 0;
  // Moves to a plan in `order`, the same on all ranks; collective in that sense, between rounds.
  // Results of the last round are gone; addresses change; the stages' state is taken along, tensor
  // by tensor. Blocks: until `deadline`, and some seconds more where little of that time is left.
  // Errors: FailedPrecondition: a round is under way; those of Plan::Reordered and Create, after
  // which the old plan stays; DeadlineExceeded: the scheduler has had no turn, and communication is
  // aborted with it.
  virtual absl::Status Replan(absl::Span<const SlotId> order, absl::Time deadline) = 0;
  // The same, with buckets of another size. Errors: also those of Plan::Resized.
  virtual absl::Status Resize(absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                              absl::Time deadline) = 0;

 protected:
  ModelRounds() = default;
  // Whether an agreement was begun and is to be ended.
  virtual bool is_agreeing() const = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_MODEL_ROUNDS_H_
