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
#include "backend/model.h"
#include "core/base/ids.h"
#include "core/bucket/tensor_spec.h"
#include "torch_bindings/csrc/user_algorithm.h"

namespace pelton::torch_bindings {

// A round begins with the first mark and lasts until FinishRound. Called without the GIL.
// Threads: marks and Abort by any, the others by one at a time; whoever marks sees to it that no
// other thread finishes the round meanwhile, and is refused if one does. Owns: the model with its
// operations; keeps the backend alive.
class UserModel {
 public:
  // Plans the buckets as `options.buckets` says, each with its operations, and agrees on all of it
  // with the ranks of the group. Collective. Blocks: until they agree, or the backend's join
  // timeout. Errors: those of UserAlgorithm::Create and of Model::Create.
  static absl::StatusOr<std::shared_ptr<UserModel>> Create(std::shared_ptr<Backend> backend,
                                                           ModelOptions options,
                                                           std::vector<TensorSpec> tensors,
                                                           std::vector<UserOperations> operations);
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

  // Counts unmarked slots as unused zeros, waits for the round and adds the outcome of averagings
  // beside training to the live tensors. Blocks: until that is done, or the model's timeout.
  // Errors: as ModelRounds::WaitRound and UserAlgorithm::AddToLive; it is every later call's too.
  absl::Status FinishRound();
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
  // The model goes before its backend.
  struct Owned {
    std::shared_ptr<Backend> backend;  // shared: Python's objects go in any order
    LiveMemory live;
    const UserAlgorithm* algorithm = nullptr;  // the model's
    std::unique_ptr<Model> model;
  };

  explicit UserModel(absl::Duration timeout) : timeout_(timeout) {}

  absl::Status CheckMark() const;
  ModelRounds& rounds() const { return owned_->model->rounds(); }

  const absl::Duration timeout_;
  // Shared: tensors that lie in the buckets keep it. Null once detached.
  std::shared_ptr<Owned> owned_;
  std::atomic<bool> is_finishing_{false};
  absl::Status failure_;  // the first round that failed
  uint64_t round_bytes_ = 0;
  uint64_t round_count_ = 0;
  absl::Duration waited_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_USER_MODEL_H_
