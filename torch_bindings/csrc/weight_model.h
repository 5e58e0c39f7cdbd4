// A model of which Pelton communicates the weights: copies of them in buckets, whose rounds go on
// beside training, and what becomes of the results.
#ifndef PELTON_TORCH_BINDINGS_CSRC_WEIGHT_MODEL_H_
#define PELTON_TORCH_BINDINGS_CSRC_WEIGHT_MODEL_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/model.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/model_state.h"
#include "torch_bindings/csrc/named_tensors.h"
#include "torch_bindings/csrc/weight_slot.h"

namespace pelton::torch_bindings {

// When rounds begin and end is its caller's affair, by the algorithm's Schedule; all ranks must
// call Begin and Finish in the same order.
// Threads: the trainer's. Called without the GIL. Owns: the model and its buckets; keeps the
// backend alive.
class WeightModel {
 public:
  // Plans the buckets, agrees on the plan with all ranks of the group, and primes the algorithm's
  // state with the weights, which must be the same on all ranks, or with `state`, what an earlier
  // model of the same algorithm and tensors left. Collective. Blocks: until the ranks agree, or the
  // timeout. Errors: InvalidArgument: no parameter, mixed devices, an algorithm that communicates
  // something else, or the first tensor that differs between ranks; those of Restore.
  static absl::StatusOr<std::shared_ptr<WeightModel>> Create(std::shared_ptr<Backend> backend,
                                                             ModelOptions options,
                                                             const NamedTensors& parameters,
                                                             const ModelState& state);
  WeightModel(const WeightModel&) = delete;
  WeightModel& operator=(const WeightModel&) = delete;

  // "name: what changed", for each parameter that is no longer what was registered.
  std::vector<std::string> Changes() const;
  // Errors: what an earlier round failed with.
  const absl::Status& failure() const { return failure_; }

  // Copies the weights that are communicated in this round into the buckets, and lets it begin.
  // Blocks: never. Errors: FailedPrecondition: a round is open; what an earlier one failed with.
  absl::Status Begin();
  bool is_open() const { return is_open_; }
  // Waits for the open round, if there is one, and merges its results into the weights. After an
  // error they are what they were (COMMIT-1). Blocks: until the timeout. Errors: what the round
  // failed with.
  absl::Status Finish();

  // Tensor names by bucket, in launch order.
  std::vector<std::vector<std::string>> Buckets() const;
  // With a delayed round that is open, also the results that it will merge. Blocks: until those are
  // here, or the timeout. Errors: FailedPrecondition: another kind of round is open; what this or
  // an earlier one failed with.
  absl::StatusOr<ModelState> State();

  struct Statistics {
    uint64_t rounds = 0;
    double wait_seconds = 0;  // the trainer was blocked on communication
    uint64_t bytes = 0;       // of the tensors communicated
    uint64_t sent_bytes = 0;  // by this rank; see Model::sent_bytes
    uint64_t copied_bytes = 0;
  };
  Statistics statistics() const;

  // Frees the buckets; a round that is open comes to nothing. Idempotent.
  void Detach();

 private:
  WeightModel(std::shared_ptr<Backend> backend, ModelOptions options)
      : options_(std::move(options)), backend_(std::move(backend)) {}

  absl::Status Install(const NamedTensors& parameters, const ModelState& state);
  absl::Status MarkAll();
  absl::Status WaitRound();
  // The results of an open round, as State tells them; and a round that was open, with those.
  std::vector<TensorState> OpenResults() const;
  absl::Status Reopen(const std::vector<TensorState>& results);
  ModelRounds& rounds() const { return model_->rounds(); }

  const ModelOptions options_;
  // Shared: Python's objects go in any order. Declared before the model, which goes first.
  std::shared_ptr<Backend> backend_;
  ProcessPtr<Model> model_;  // null once detached
  Schedule schedule_;
  std::vector<std::unique_ptr<WeightSlot>> slots_;
  std::vector<bool> communicates_;  // by slot, in the open round
  bool is_open_ = false;
  bool has_results_ = false;  // of the open round, in the buckets
  absl::Status failure_;      // of the first round that failed
  Statistics statistics_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_WEIGHT_MODEL_H_
