// The algorithm that a user puts together, bucket by bucket, of registered algorithms and functions
// of the user's own.
#ifndef PELTON_TORCH_BINDINGS_CSRC_USER_ALGORITHM_H_
#define PELTON_TORCH_BINDINGS_CSRC_USER_ALGORITHM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "algorithms/algorithm.h"
#include "comm/tiers.h"
#include "core/actor/actor_ref.h"
#include "core/base/ids.h"
#include "core/memory/dtype.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"
#include "core/round/blocking_stage.h"
#include "torch_bindings/csrc/averaging_control.h"

namespace pelton::torch_bindings {

// Memory of a tensor of the user's.
struct UserMemory {
  std::byte* data = nullptr;
  uint64_t count = 0;  // elements, one after the other
  DType dtype = DType::kFloat32;
  // Keeps the tensor alive. Shared: the runtime knows no tensors, only that something must stay.
  std::shared_ptr<void> owner;
};

// Where each slot's tensor lies that is not in the bucket; set before the slot is marked.
using LiveMemory = std::vector<UserMemory>;
// By the name of the state's buffer.
using NamedMemory = std::vector<std::pair<std::string, UserMemory>>;

// What the stages of one bucket have made for tensors of the user's; those get it once the round is
// complete (COMMIT-1).
// Threads: the channel's while the round lasts, then the trainer's. Owns: the list; keeps the
// tensors alive.
class Outcomes {
 public:
  // `data` has the elements of `target` and stays as it is until Commit.
  void Add(const std::byte* data, UserMemory target);
  // What `memory` holds, or will once what was added last for it is there.
  const std::byte* LatestOf(const UserMemory& memory) const;
  void Commit();

 private:
  struct Outcome {
    const std::byte* data;
    UserMemory target;
  };
  std::vector<Outcome> outcomes_;
};

// What a user has appended to a bucket: either `algorithm`, a name of the registry whose stages do
// the work in the bucket, or `function`. At most one of the three memories is given.
struct UserOperation {
  std::string name;       // for reports and for the comparison between ranks
  std::string algorithm;  // empty: `function`
  AlgorithmOptions options;
  std::function<absl::Status()> function;
  // Takes the outcome; the bucket stays as it was. No elements: the bucket takes it.
  UserMemory peer_weight;
  // State that the user keeps, by the name that the algorithm's stage gives it.
  NamedMemory replicas;
  // Of an averaging beside training: the outcome is added to the live tensors under its lock, until
  // the ranks agree to stop. Shared with the user's handle. Null: no such averaging.
  std::shared_ptr<AveragingControl> control;
};
using UserOperations = std::vector<UserOperation>;  // of a bucket, in the order appended
// Whether any bucket has a function.
bool CallsFunctions(const std::vector<UserOperations>& buckets);

// "gradient_allreduce(average=true), function": what must be the same on all ranks.
std::string DescribeOperations(const UserOperations& operations);

// In no registry. The plan's buckets are those of `buckets`, in that order, and none is empty; it
// has no gaps between slots.
// Threads: as Algorithm. Owns: the operations.
class UserAlgorithm final : public Algorithm {
 public:
  // `caller` calls the functions; it may be nobody where there are none. Errors: NotFound: an
  // algorithm that is not registered; InvalidArgument: its options, or it needs windows or peers
  // that are chosen for a whole model; all name the bucket.
  static absl::StatusOr<std::unique_ptr<UserAlgorithm>> Create(std::vector<UserOperations> buckets,
                                                               ActorRef<StageCaller> caller = {});

  std::string BytesSent() const override { return "those of its operations"; }
  bool IsHierarchical() const override;
  PlanConstraints Constraints() const override;
  bool RanksAgree() const override { return false; }
  bool FindsUnused(const BucketLayout& layout) const override;
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override;

  // Of a round that is complete, before its outcome is added to live tensors: takes the locks of
  // all averagings beside training that go on (COMMIT-1). Blocks: until `deadline`. Errors:
  // FailedPrecondition: this thread holds a lock; DeadlineExceeded: another one does; then none is
  // taken.
  absl::Status Lock(absl::Time deadline);
  // Between Lock and Commit: whether the bucket's outcome goes to the live tensors.
  bool AddsToLive(BucketId bucket) const;
  // Gives the user's other tensors what the stages have made for them, and the locks back. Errors:
  // FailedPrecondition: somebody has given a lock back already.
  absl::Status Commit();

 private:
  // An operation, with the algorithm that it names; null for a function.
  struct Step {
    UserOperation operation;
    std::unique_ptr<Algorithm> algorithm;
  };

  UserAlgorithm() = default;

  absl::Status AddStep(Step& step, const BucketLayout& layout, const Tiers& tiers,
                       PipelineSpec& spec);
  void AddStages(const UserOperation& operation, const BucketLayout& layout,
                 std::vector<std::unique_ptr<Stage>> stages, PipelineSpec& spec);
  std::unique_ptr<Stage> Adapt(const UserOperation& operation, const BucketLayout& layout,
                               std::unique_ptr<Stage> stage) const;
  const std::shared_ptr<Outcomes>& OutcomesOf(const BucketLayout& layout) const {
    return outcomes_[static_cast<size_t>(layout.id.value())];
  }
  // The averagings beside training that the ranks have not agreed to stop.
  std::vector<std::pair<BucketId, AveragingControl*>> Running() const;

  ActorRef<StageCaller> caller_;
  std::vector<std::vector<Step>> buckets_;
  std::vector<std::shared_ptr<Outcomes>> outcomes_;  // by bucket; shared with its stages
  std::vector<std::pair<BucketId, AveragingControl*>> locked_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_USER_ALGORITHM_H_
