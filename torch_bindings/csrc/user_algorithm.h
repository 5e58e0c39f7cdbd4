// The algorithm that a user puts together, bucket by bucket, of registered algorithms and functions
// of the user's own.
#ifndef PELTON_TORCH_BINDINGS_CSRC_USER_ALGORITHM_H_
#define PELTON_TORCH_BINDINGS_CSRC_USER_ALGORITHM_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "comm/tiers.h"
#include "core/base/ids.h"
#include "core/bucket/plan.h"
#include "core/pipeline/pipeline.h"
#include "torch_bindings/csrc/averaging_control.h"
#include "torch_bindings/csrc/user_stages.h"

namespace pelton::torch_bindings {

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

// "gradient_allreduce(average=true), function": what must be the same on all ranks.
std::string DescribeOperations(const UserOperations& operations);

// In no registry. The plan's buckets are those of `buckets`, in that order, and none is empty; it
// has no gaps between slots.
// Threads: as Algorithm. Owns: the operations.
class UserAlgorithm final : public Algorithm {
 public:
  // Errors: NotFound: an algorithm that is not registered; InvalidArgument: its options; both name
  // the bucket.
  static absl::StatusOr<std::unique_ptr<UserAlgorithm>> Create(std::vector<UserOperations> buckets);

  std::string BytesSent() const override { return "those of its operations"; }
  bool IsHierarchical() const override;
  PlanConstraints Constraints() const override;
  bool RanksAgree() const override { return false; }
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

  std::vector<std::vector<Step>> buckets_;
  std::vector<std::shared_ptr<Outcomes>> outcomes_;  // by bucket; shared with its stages
  std::vector<std::pair<BucketId, AveragingControl*>> locked_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_USER_ALGORITHM_H_
