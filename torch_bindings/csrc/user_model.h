// Buckets that a user has chosen, of any tensors, and their rounds.
#ifndef PELTON_TORCH_BINDINGS_CSRC_USER_MODEL_H_
#define PELTON_TORCH_BINDINGS_CSRC_USER_MODEL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/model_port.h"
#include "core/actor/actor_ref.h"
#include "core/actor/spawn_options.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "core/round/blocking_stage.h"
#include "core/round/tensor_port.h"
#include "core/round/trigger.h"
#include "core/trace/trace.h"
#include "torch_bindings/csrc/user_algorithm.h"

namespace pelton::torch_bindings {

// A round begins with the first mark and lasts until FinishRound. Called without the GIL.
// Threads: marks and Abort by any, the others by one at a time; a caller that marks makes sure that
// no other thread finishes the round meanwhile, and is refused if one does. Owns: the model with
// its operations; keeps the backend alive.
class UserModel {
 public:
  // Plans the buckets as `options.buckets` says, each with its operations, and agrees on all of it
  // with the ranks of the group. `viewer`, which may be null, is shown the rounds. Collective.
  // Blocks: until they agree, or the backend's join timeout. Errors: those of UserAlgorithm::Create
  // and of ModelPort::Create.
  static absl::StatusOr<std::shared_ptr<UserModel>> Create(
      std::shared_ptr<Backend> backend, ModelOptions options, std::vector<TensorSpec> tensors,
      std::vector<UserOperations> operations, std::shared_ptr<RangeViewer> viewer = nullptr);
  UserModel(const UserModel&) = delete;
  UserModel& operator=(const UserModel&) = delete;

  // Where a slot's elements lie in its bucket, without gaps to its neighbours; as long as the owner
  // lives. Errors: FailedPrecondition: detached.
  absl::StatusOr<UserMemory> MemoryOf(SlotId slot) const;

  // The slot's elements are final, in MemoryOf(slot). `live` is the tensor itself where the bucket
  // holds only a copy. Blocks: never. Errors: FailedPrecondition: the round is being waited for, or
  // detached; AlreadyExists: marked already in this round; what an earlier round failed with.
  absl::Status MarkReady(SlotId slot, UserMemory live);
  // As MarkReady, for a tensor that this rank did not use; its elements count all the same.
  absl::Status MarkUnused(SlotId slot);

  // Counts unmarked slots as unused zeros, waits for the round and lets its outcome be: averagings
  // beside training are added to the live tensors, peer weights and replicas get theirs, all of it
  // or nothing (COMMIT-1). Blocks: until that is done, or the model's timeout. Errors: as
  // ModelPort::Wait and UserAlgorithm::Lock; it is every later call's too.
  absl::Status FinishRound();
  // Of an optimizer's step: whether it completes one of the model's.
  bool Post(const TrainingEvent& event);
  // Of the last round: whether any rank used the tensor; true too where that is not known.
  bool UsedByAny(SlotId slot) const;

  // Ends this round and all later ones with `reason`, here and on the peers. Blocks: never.
  void Abort(const absl::Status& reason);
  // Names, sizes in bytes and so on; of what WrappedModel counts, under the same names.
  std::map<std::string, double> Statistics() const;
  // Frees the buckets, but for memory whose owner is kept. Idempotent. Blocks: at most
  // limits::kStopTimeout.
  void Detach();

 private:
  // The caller of the model's functions; nobody where it has none.
  struct FunctionCaller {
    FunctionCaller() = default;
    FunctionCaller(const FunctionCaller&) = delete;
    FunctionCaller& operator=(const FunctionCaller&) = delete;
    // Does not wait: a function may be what lets go of the model, and one that hangs has no end.
    ~FunctionCaller() { actor.Stop(absl::InfiniteFuture(), StopMode::kDrop); }
    ActorRef<StageCaller> actor;
  };
  // The port's tensors: Python has them in their places before they are marked. The port goes
  // before its backend.
  struct Owned final : TensorPort {
    void Place(SlotId slot, std::byte* memory) override;
    absl::StatusOr<Brought> Bring(SlotId slot, bool is_used) override;
    absl::Status BeginMerge(absl::Time deadline) override { return algorithm->Lock(deadline); }
    void Merge(SlotId slot, const CommitRule& rule, bool used_by_any) override;
    absl::Status EndMerge() override { return algorithm->Commit(); }

    std::shared_ptr<Backend> backend;     // shared: Python's objects go in any order
    std::shared_ptr<RangeViewer> viewer;  // shared: tensors may outlive the model
    std::vector<BucketId> bucket_of;      // by slot, as are those below
    std::vector<TensorSpec> specs;
    std::vector<std::byte*> places;
    LiveMemory live;
    std::vector<char> is_marked;         // as used; bytes: several threads may mark
    UserAlgorithm* algorithm = nullptr;  // the port's
    FunctionCaller caller;               // goes after the port, whose rounds ask it
    std::unique_ptr<ModelPort> port;
  };

  UserModel() = default;

  absl::Status CheckMark() const;
  absl::Status MarkSlot(SlotId slot);
  absl::Status EndRound();
  ModelPort& port() const { return *owned_->port; }

  // Shared: tensors that lie in the buckets keep it. Null once detached.
  std::shared_ptr<Owned> owned_;
  ModelPort::Statistics statistics_;  // of before Detach
  std::atomic<bool> is_finishing_{false};
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_USER_MODEL_H_
