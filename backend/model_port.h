// The one door between a trainer and the rounds of its model: events go in, and at the moments that
// the algorithm's trigger makes of them, tensors are communicated and results merged.
#ifndef PELTON_BACKEND_MODEL_PORT_H_
#define PELTON_BACKEND_MODEL_PORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "algorithms/algorithm.h"
#include "backend/averaging_loop.h"
#include "backend/backend.h"
#include "backend/model.h"
#include "backend/plan_tuning.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/base/fork.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"
#include "core/round/model_state.h"
#include "core/round/schedule.h"
#include "core/round/tensor_port.h"
#include "core/round/trigger.h"

namespace pelton {

// What a port is made of beside its model.
// Threads: a value. Owns: copies.
struct PortOptions {
  ModelOptions model;
  // The trainer's calls begin rounds, whatever the algorithm's own trigger is.
  bool on_call = false;
  // Of tensors that are communicated when ready: buckets stay as they were planned.
  bool keeps_order = false;
  uint64_t steps = 0;  // that the trigger has counted before
  ModelState state;    // what an earlier model of the same algorithm and tensors left
  // In place of it: what all ranks of a group of any size left, by rank; see Reshard.
  std::vector<ModelState> states;
};

// Where a port's model comes from. Threads: a value. Owns: its callbacks, which outlive the port.
struct ModelSource {
  std::function<absl::StatusOr<std::unique_ptr<Model>>(const ModelOptions& options,
                                                       std::unique_ptr<Algorithm> algorithm,
                                                       std::vector<TensorSpec> tensors)>
      make;
  // Why the job has failed; OK while it has not.
  std::function<absl::Status()> failure;
  // Is told when the loop of a port fails; may be nobody.
  ActorRef<Actor> parent;

  // In the daemon that `backend` is attached to, where the model belongs there; else in process.
  static ModelSource Of(Backend& backend);
};

// A trainer's tensors in buckets, whose rounds are in its backward passes, between its steps or
// beside them. All ranks must post what makes rounds due in the same order. A round changes the
// tensors when it is complete on this rank, all of them, or none (COMMIT-1).
//
// TriggerKind::kWhenReady: kBackwardBegins opens a round, kTensorReady lets a tensor go, and
// kBackwardEnds those that did not come, after which Wait waits. A tensor's event costs no lock, no
// allocation and no message but the bucket's last one's.
// Threads: the trainer's. Owns: the model, its buckets and, under TriggerKind::kTimer, the loop of
// its rounds; borrows backend and tensors, which outlive it.
class ModelPort {
 public:
  // Plans the buckets, agrees on the plan with all ranks of the group, and primes the algorithm's
  // state with the tensors, unless they are communicated when ready: they must be the same on all
  // ranks; or with `options.state`, or `options.states`. Collective. Blocks: until the ranks agree,
  // or the timeout. Errors: those of Model::Create, of Restore and of Reshard; InvalidArgument:
  // rounds that ranks do not share are to begin by another trigger than a timer.
  static absl::StatusOr<std::unique_ptr<ModelPort>> Create(Backend& backend, PortOptions options,
                                                           std::unique_ptr<Algorithm> algorithm,
                                                           std::vector<TensorSpec> specs,
                                                           TensorPort& tensors);
  // The same with a model of another source than a backend.
  static absl::StatusOr<std::unique_ptr<ModelPort>> Create(ModelSource source, PortOptions options,
                                                           std::unique_ptr<Algorithm> algorithm,
                                                           std::vector<TensorSpec> specs,
                                                           TensorPort& tensors);
  ~ModelPort() { Detach(absl::ZeroDuration()); }
  ModelPort(const ModelPort&) = delete;
  ModelPort& operator=(const ModelPort&) = delete;

  // Does what is due because of `event`. Blocks: where a round ends, or the tensors are claimed,
  // until the timeout. Errors: what this or an earlier round failed with; FailedPrecondition:
  // something has changed the tensors that results would undo. After an error the event has not
  // been: it may be posted again.
  absl::Status Post(const TrainingEvent& event);
  // Waits for the open round, if there is one, and merges its results. Blocks: until the timeout.
  // Errors: what the round failed with.
  absl::Status Wait();
  // Of tensors that are communicated when ready, after each Wait: the first round has shown in
  // which order they come, and buckets follow rank 0's from then on. Collective. Blocks: until the
  // timeout. Errors: those of ModelRounds::AgreeOnOrder and Replan. While the bucket size is tuned
  // it moves to the next one that is tried.
  absl::Status AdoptOrder();
  // Tunes the bucket size from the next round on (PlanTuning), on all ranks alike. `csv_path`: see
  // PlanTuningOptions. Errors: Unimplemented: the algorithm's results depend on the buckets, or it
  // has no rounds in backward passes, or the buckets are a GPU's; the text says which.
  // FailedPrecondition: a round is open.
  absl::Status Tune(std::string csv_path);
  // Stays with the plan in force; between rounds, on all ranks at the same one. Idempotent.
  void EndTuning();
  bool is_tuning() const { return wants_tuning_.has_value() || tuning_ != nullptr; }
  // In the plan's order.
  std::vector<SlotId> UnmarkedSlots() const { return rounds().UnmarkedSlots(); }
  // Ends this round and all later ones, here and on the peers. Threads: any. Blocks: never.
  void Abort(const absl::Status& reason) { rounds().Abort(reason); }
  // What the last round holds for a slot, until it is communicated again. Blocks: never.
  SlotResult ResultOf(SlotId slot) const { return rounds().ResultOf(slot); }

  // Of rounds by a timer; else they do nothing. Stop lets go of a claim and ends the rounds when
  // all ranks have asked for it, or this rank's own at once, with a last one when all have; it is
  // idempotent, as Resume is. StayStopped has rounds that have
  // begun on no rank wait for Resume; unlike Stop it makes no last one. Blocks: Stop: until the
  // timeout. Errors: DeadlineExceeded: not all ranks have asked; what a round failed with.
  absl::Status Stop(absl::Duration timeout);
  absl::Status Resume();
  void StayStopped() { trigger_.StayStopped(); }

  // What the algorithm remembers; with a delayed round that is open also the results that it will
  // merge. Blocks: until those are here, or the timeout. Errors: FailedPrecondition: another kind
  // of round is open; what this or an earlier one failed with.
  absl::StatusOr<ModelState> State();
  // Errors: what an earlier round failed with. Rounds by a timer tell it where tensors are claimed.
  const absl::Status& failure() const { return failure_; }
  const Trigger& trigger() const { return trigger_; }
  const Schedule& schedule() const { return schedule_; }
  bool is_open() const { return is_open_; }

  struct Statistics {
    uint64_t rounds = 0;
    double wait_seconds = 0;    // the trainer was blocked on communication
    uint64_t bytes = 0;         // of the tensors communicated
    uint64_t sent_bytes = 0;    // by this rank; see Model::sent_bytes
    uint64_t copied_bytes = 0;  // unless tensors are communicated when ready: their port knows
    uint32_t plan_generation = 0;
    uint64_t bucket_size_bytes = 0;
  };
  Statistics statistics() const;
  // Tensor names by bucket, in launch order.
  std::vector<std::vector<std::string>> Buckets() const;
  // The elements of a bucket that lie one after the other, without its padding.
  // Threads: a value. Owns: nothing; of use until the plan changes.
  struct FlatPart {
    std::byte* data = nullptr;
    DType dtype = DType::kFloat32;
    uint64_t count = 0;
    std::vector<std::pair<SlotId, uint64_t>> slots;  // each with its first element
  };
  // Of the buckets that have one, in launch order.
  std::vector<FlatPart> FlatParts() const;

  // Frees everything; a round that is open comes to nothing. Rounds by a timer are stopped in
  // agreement with the other ranks where that can be had within `timeout`. Idempotent. Blocks:
  // until the timeout.
  void Detach(absl::Duration timeout);

 private:
  ModelPort(const PortOptions& options, const Schedule& schedule, bool makes_equal,
            TensorPort& tensors);

  absl::Status Install(const ModelSource& source, std::unique_ptr<Algorithm> algorithm,
                       std::vector<TensorSpec> specs, PortOptions options);
  absl::Status InstallLoop(const ModelSource& source);
  absl::Status Prime();
  void PlaceAll();
  absl::Status OnReady(const TrainingEvent& event);
  absl::Status Mark(SlotId slot, bool is_used);
  absl::Status MoveTo(absl::Span<const SlotId> order, std::optional<uint64_t> bucket_size_bytes,
                      absl::Time deadline);
  absl::Status CheckTunable() const;
  void BeginTuning(std::vector<SlotId> order);
  absl::Status Do(RoundAction action);
  absl::Status DoAll(absl::Span<const RoundAction> actions);
  absl::Status Begin();
  absl::Status MarkAll();
  absl::Status Finish();
  absl::Status MergeAll(absl::Time deadline);
  absl::Status FinishUnchanged();
  absl::Status WaitRound();
  absl::Status CheckLoop() const;
  // The results of an open round, as State tells them; and a round that was open, with those.
  void AddOpenResults(ModelState& state) const;
  absl::Status Reopen(const std::vector<TensorState>& results);
  ModelRounds& rounds() const { return model_->rounds(); }
  const TensorSpec& spec(size_t slot) const { return rounds().plan().tensors()[slot]; }

  const ModelOptions options_;
  const Schedule schedule_;
  TensorPort& tensors_;
  size_t tensor_count_ = 0;  // without the loop's own
  uint64_t size_bytes_ = 0;  // of all of them
  Trigger trigger_;
  // Null once detached; the loop goes first.
  ProcessPtr<Model> model_;
  ProcessPtr<AveragingLoop> loop_;                 // null unless rounds are by a timer
  std::optional<PlanTuningOptions> wants_tuning_;  // until the order is adopted
  std::unique_ptr<PlanTuning> tuning_;             // null unless the bucket size is being tuned
  std::vector<bool> communicates_;                 // by slot, in the open round
  bool order_is_adopted_;
  bool is_open_ = false;
  bool has_results_ = false;              // of the open round, in the buckets
  std::optional<uint64_t> fingerprint_;   // of the tensors, where a merge waits
  absl::Status failure_;                  // of the first round that failed
  std::atomic<uint64_t> loop_rounds_{0};  // complete, on the loop's thread
  Statistics statistics_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_MODEL_PORT_H_
