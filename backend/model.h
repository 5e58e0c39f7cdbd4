// One model's place in the backend: its algorithm, its communicator and its rounds.
#ifndef PELTON_BACKEND_MODEL_H_
#define PELTON_BACKEND_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "comm/group.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/memory/cuda/cuda_queue.h"
#include "core/memory/region.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"
#include "core/trace/trace.h"

namespace pelton {

struct ModelOptions {
  std::string name;  // for reports; the same on all ranks
  Group group;
  std::string algorithm = "gradient_allreduce";
  AlgorithmOptions algorithm_options;
  uint64_t bucket_size_bytes = limits::kDefaultBucketBytes;
  // A tensor of at least this size may lie anywhere in shared memory.
  uint64_t standalone_bytes = PlanOptions::kNoStandalone;
  std::vector<int32_t> buckets;                   // as PlanOptions::buckets
  std::string schedules;                          // as in Backend::Open
  absl::Duration timeout = absl::ZeroDuration();  // of each operation; zero: the backend's
  Round first_round{1};                           // as ModelRoundsOptions::first_round
  bool commits_state = false;                     // as ModelRoundsOptions::commits_state
  RangeViewer* viewer = nullptr;                  // as ModelRoundsOptions::viewer
  // As ModelRoundsOptions::on_failure; null: the backend tells the other ranks.
  std::function<void(const absl::Status&)> on_failure;
  // Where the tensors are on a GPU: the stream on which the calling thread puts its work.
  CudaQueue::CallersStream callers_stream;
};

// Threads: as ModelRounds. Owns: everything that serves the model; must go before its backend.
class Model {
 public:
  // In this process. Plans the buckets of `tensors`, given in registration order and all of one
  // device, for the algorithm that `options` name, and compares the plan with those of the group's
  // ranks. Collective over the group. Blocks: until they agree, or the backend's join timeout.
  // Errors: NotFound: no such algorithm; InvalidArgument: its options, or the group; those of
  // Plan::Build; FailedPrecondition: names the first tensor that differs between ranks.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Backend& backend,
                                                       const ModelOptions& options,
                                                       std::vector<TensorSpec> tensors);
  // The same for an algorithm that is made already and in no registry.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Backend& backend,
                                                       const ModelOptions& options,
                                                       std::unique_ptr<Algorithm> algorithm,
                                                       std::vector<TensorSpec> tensors);
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  virtual ModelRounds& rounds() = 0;
  // Of this process, in the model's group.
  virtual Rank rank() const = 0;
  virtual const Algorithm& algorithm() const = 0;
  // Sent by this rank so far for this model, inside the host and beyond it, and put into windows;
  // see SentBytesOf.
  virtual uint64_t sent_bytes() const = 0;

  // Memory of the host beside the buckets, where standalone tensors lie: peers reach it where it is
  // from now on, as they do what the backend shares. It outlives the model, or Deregister and the
  // round that is open then. Threads: any. Blocks: never for long. Errors: those of
  // Communicator::Register.
  virtual absl::Status Register(const Region& region) = 0;
  virtual void Deregister(RegionId region) = 0;

 protected:
  Model() = default;
};

// Of each operation of the model.
inline absl::Duration OperationTimeoutOf(const ModelOptions& options, const Backend& backend) {
  return options.timeout == absl::ZeroDuration() ? backend.options().operation_timeout
                                                 : options.timeout;
}

// The plan of `tensors` under `algorithm`, the same wherever it is made of the same options.
// Errors: InvalidArgument: the algorithm cannot communicate a tensor; those of Plan::Build.
absl::StatusOr<Plan> PlanOf(const ModelOptions& options, const Algorithm& algorithm,
                            std::vector<TensorSpec> tensors);

}  // namespace pelton

#endif  // PELTON_BACKEND_MODEL_H_
