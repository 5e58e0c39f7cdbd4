// A model whose weights are averaged beside training, in rounds of their own.
#ifndef PELTON_TORCH_BINDINGS_CSRC_AVERAGING_MODEL_H_
#define PELTON_TORCH_BINDINGS_CSRC_AVERAGING_MODEL_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/averaging_loop.h"
#include "backend/backend.h"
#include "backend/model.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/named_tensors.h"
#include "torch_bindings/csrc/weight_slot.h"

namespace pelton::torch_bindings {

// The trainer claims the weights before it reads or writes them; averages are added in between.
// Threads: the trainer's; the loop's thread touches the weights while they are not claimed, without
// the GIL. Called without the GIL. Owns: the model, its buckets and the loop; keeps the backend
// alive.
class AveragingModel {
 public:
  // As WeightModel::Create, for an algorithm of kWeightsAnytime; the loop stands still.
  static absl::StatusOr<std::unique_ptr<AveragingModel>> Create(std::shared_ptr<Backend> backend,
                                                                ModelOptions options,
                                                                const NamedTensors& parameters);
  ~AveragingModel() { Detach(absl::ZeroDuration()); }
  AveragingModel(const AveragingModel&) = delete;
  AveragingModel& operator=(const AveragingModel&) = delete;

  // "name: what changed", for each parameter that is no longer what was registered.
  std::vector<std::string> Changes() const;

  // See AveragingLoop. Blocks: Claim and Stop: until the timeout. Errors: why averaging has failed;
  // after Detach FailedPrecondition.
  absl::Status Claim();
  void Release();
  absl::Status Stop(absl::Duration timeout);
  absl::Status Resume();

  // Tensor names by bucket, in launch order.
  std::vector<std::vector<std::string>> Buckets() const;
  uint64_t rounds() const { return round_count_.load(std::memory_order_relaxed); }
  uint64_t sent_bytes() const { return model_ == nullptr ? 0 : model_->sent_bytes(); }
  uint64_t size_bytes() const { return size_bytes_; }

  // Stops in agreement with the other ranks where that can be had within `timeout`, in any case
  // frees everything. Idempotent. Blocks: until the timeout.
  void Detach(absl::Duration timeout);

 private:
  AveragingModel(std::shared_ptr<Backend> backend, ModelOptions options)
      : options_(std::move(options)), backend_(std::move(backend)) {}

  absl::Status Install(const NamedTensors& parameters);
  absl::Status CheckAttached() const;

  const ModelOptions options_;
  // Shared: Python's objects go in any order. Each goes before the one above it.
  std::shared_ptr<Backend> backend_;
  std::vector<std::unique_ptr<WeightSlot>> slots_;
  ProcessPtr<Model> model_;
  ProcessPtr<AveragingLoop> loop_;  // null once detached
  std::atomic<uint64_t> round_count_{0};
  uint64_t size_bytes_ = 0;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_AVERAGING_MODEL_H_
