// Collectives as jobs launch them, on two ranks of one thread.
#include "torch_bindings/csrc/collective_launch.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/lane/job.h"
#include "comm/transport/sim/sim_fabric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ints = std::vector<int32_t>;

Tensor TensorOf(Ints& ints) { return {ints.data(), ints.size(), DType::kInt32}; }

// Threads: one. Owns: both ranks, and a tensor of each.
class CollectiveLaunchTest : public ::testing::Test {
 protected:
  // A maximum of the ranks' tensors, in place.
  Collective MaximumOn(size_t rank) {
    return {.kind = OperationKind::kAllReduce,
            .source = TensorOf(tensors_[rank]),
            .target = TensorOf(tensors_[rank]),
            .count = 2,
            .bucket = BucketId(3),
            .reduce_op = ReduceOp::kMax,
            .shape_mark = 7};
  }

  // What rank 0's operation ends as.
  absl::Status Run(lane::Job::Launch& first, lane::Job::Launch& second) {
    const absl::StatusOr<Completion> launched = first(*communicators_[0]);
    if (!launched.ok()) return launched.status();
    EXPECT_TRUE(second(*communicators_[1]).ok());
    for (int i = 0; i < 1000; ++i) {
      for (auto& communicator : communicators_) communicator->Progress();
      const OperationRunner::State state = communicators_[0]->Query(*launched);
      if (state.done) return state.status;
    }
    return absl::DeadlineExceededError("it does not end");
  }
  absl::Status Run(const Collective& first, const Collective& second) {
    lane::Job::Launch of_first = LaunchOf(first, std::nullopt);
    lane::Job::Launch of_second = LaunchOf(second, std::nullopt);
    return Run(of_first, of_second);
  }

  SimFabric fabric_{WorldSize(2)};
  std::vector<std::unique_ptr<Communicator>> communicators_ =
      *fabric_.OpenAll(CommunicatorId(3), Group::World(WorldSize(2)));
  std::vector<Ints> tensors_ = {{1, 20}, {10, 2}};
};

TEST_F(CollectiveLaunchTest, ReducesByItsOperation) {
  EXPECT_EQ(Run(MaximumOn(0), MaximumOn(1)), absl::OkStatus());
  EXPECT_THAT(tensors_[0], ElementsAre(10, 20));
  EXPECT_THAT(tensors_[1], ElementsAre(10, 20));
}

TEST_F(CollectiveLaunchTest, ReadsItsSourceAndWritesItsTarget) {
  Ints target(4);
  Ints other(4);
  Collective gather = MaximumOn(0);
  gather.kind = OperationKind::kAllGather;
  gather.target = TensorOf(target);
  Collective theirs = MaximumOn(1);
  theirs.kind = OperationKind::kAllGather;
  theirs.target = TensorOf(other);
  EXPECT_EQ(Run(gather, theirs), absl::OkStatus());
  EXPECT_THAT(target, ElementsAre(1, 20, 10, 2));
  EXPECT_THAT(other, ElementsAre(1, 20, 10, 2));
}

TEST_F(CollectiveLaunchTest, BroadcastsItsRootsTensor) {
  Collective mine = MaximumOn(0);
  mine.kind = OperationKind::kBroadcast;
  mine.root = 1;
  Collective theirs = MaximumOn(1);
  theirs.kind = OperationKind::kBroadcast;
  theirs.root = 1;
  EXPECT_EQ(Run(mine, theirs), absl::OkStatus());
  EXPECT_THAT(tensors_[0], ElementsAre(10, 2));
}

// A launch that found no room is called again.
TEST_F(CollectiveLaunchTest, MayBeLaunchedMoreThanOnce) {
  lane::Job::Launch mine = LaunchOf(MaximumOn(0), std::nullopt);
  lane::Job::Launch theirs = LaunchOf(MaximumOn(1), std::nullopt);
  EXPECT_EQ(Run(mine, theirs), absl::OkStatus());
  tensors_[0] = {5, 6};
  tensors_[1] = {6, 5};
  EXPECT_EQ(Run(mine, theirs), absl::OkStatus());
  EXPECT_THAT(tensors_[0], ElementsAre(6, 6));
}

TEST_F(CollectiveLaunchTest, OperationsOfDifferentNamesDoNotMeet) {
  Collective theirs = MaximumOn(1);
  theirs.bucket = BucketId(4);
  EXPECT_THAT(Run(MaximumOn(0), theirs).ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("bucket"), HasSubstr("3 on rank 0"),
                    HasSubstr("4 on rank 1")));
}

TEST_F(CollectiveLaunchTest, TensorsOfDifferentShapesDoNotMeet) {
  Collective theirs = MaximumOn(1);
  theirs.shape_mark = 8;
  EXPECT_THAT(Run(MaximumOn(0), theirs).ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("shapes of the tensors differ")));
}

}  // namespace
}  // namespace pelton::torch_bindings
