// One model's place in the backend: its algorithm, its communicator and its rounds.
#ifndef PELTON_BACKEND_MODEL_H_
#define PELTON_BACKEND_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/arrival_matchmaker.h"
#include "backend/backend.h"
#include "backend/peer_selector.h"
#include "backend/watched_communicator.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/tiers.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/bucket/model_rounds.h"
#include "core/bucket/plan.h"
#include "core/bucket/tensor_spec.h"
#include "core/memory/cuda/cuda_queue.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/stream.h"
#include "core/trace/range_viewer.h"

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
  absl::Duration timeout = absl::ZeroDuration();  // of each operation; zero: the backend's
  Round first_round{1};                           // as ModelRoundsOptions::first_round
  bool commits_state = false;                     // as ModelRoundsOptions::commits_state
  RangeViewer* viewer = nullptr;                  // as ModelRoundsOptions::viewer
  // Where the tensors are on a GPU: the stream on which the calling thread puts its work.
  CudaQueue::CallersStream callers_stream;
};

// Threads: as ModelRounds. Owns: everything that serves the model; must go before its backend.
class Model {
 public:
  // Plans the buckets of `tensors`, given in registration order and all of one device, for the
  // algorithm that `options` name, and compares the plan with those of the group's ranks.
  // Collective over the group. Blocks: until they agree, or the backend's join timeout. Errors:
  // NotFound: no such algorithm; InvalidArgument: its options, or the group; those of Plan::Build;
  // FailedPrecondition: names the first tensor that differs between ranks.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Backend& backend,
                                                       const ModelOptions& options,
                                                       std::vector<TensorSpec> tensors);
  // The same for an algorithm that is made already and in no registry.
  static absl::StatusOr<std::unique_ptr<Model>> Create(Backend& backend,
                                                       const ModelOptions& options,
                                                       std::unique_ptr<Algorithm> algorithm,
                                                       std::vector<TensorSpec> tensors);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  ModelRounds& rounds() { return *rounds_; }
  Communicator& communicator() { return *communicator_; }
  const Algorithm& algorithm() const { return *algorithm_; }
  // Sent by this rank so far for this model, inside the host and beyond it; see SentBytesOf.
  uint64_t sent_bytes() const;

 private:
  explicit Model(Backend& backend) : backend_(backend) {}

  // Of the tensors. Errors: InvalidArgument: they are on several, or the GPU's stream is not given.
  static absl::StatusOr<Device> DeviceOf(const std::vector<TensorSpec>& tensors,
                                         const ModelOptions& options);
  absl::Status OpenDevice(Device device, const ModelOptions& options);

  absl::StatusOr<Plan> MakePlan(const ModelOptions& options, std::vector<TensorSpec> tensors);
  absl::Status AgreeOn(const Plan& plan, const ModelOptions& options);
  absl::Status OpenTiers(const Group& group);
  // The hosts' leaders, in the group's order.
  std::vector<Rank> LeadersOf(const Group& group) const;
  // Asks the control plane for peers where the algorithm wants that.
  void SelectPeers(const ModelOptions& options);
  absl::Status MakeRounds(Plan plan, const ModelOptions& options);

  Backend& backend_;
  std::unique_ptr<Algorithm> algorithm_;
  Device device_;
  // Where the buckets are on a GPU; null else.
  std::unique_ptr<const cuda::CudaRuntime> runtime_;
  std::unique_ptr<CudaQueue> queue_;
  std::unique_ptr<WatchedCommunicator> communicator_;
  // Of a hierarchical algorithm; null else, and `leaders_` on ranks that lead no host.
  std::unique_ptr<WatchedCommunicator> host_;
  std::unique_ptr<WatchedCommunicator> leaders_;
  Tiers tiers_;
  std::unique_ptr<TieredRunner> runner_;  // null unless hierarchical
  // Where the algorithm names a policy, one of the two. After what the matchmaker wakes.
  std::unique_ptr<PeerSelector> peers_;
  std::unique_ptr<ArrivalMatchmaker> matchmaker_;
  std::unique_ptr<ModelRounds> rounds_;  // last: it runs on the communicators
};

}  // namespace pelton

#endif  // PELTON_BACKEND_MODEL_H_
