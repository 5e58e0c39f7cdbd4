// Buckets and operations that a user has chosen, through the model's port, with no Python and no
// torch: ranks as threads, over shared memory.
#include "torch_bindings/csrc/user_model.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "backend/test_ranks.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kCount = 16;
using Floats = std::vector<float>;

UserMemory MemoryOf(Floats& floats) {
  return {reinterpret_cast<std::byte*>(floats.data()), floats.size(), DType::kFloat32, nullptr};
}

UserOperation Named(const std::string& algorithm, AlgorithmOptions options = {}) {
  UserOperation operation;
  operation.name = algorithm;
  operation.algorithm = algorithm;
  operation.options = std::move(options);
  return operation;
}

UserOperation Averaged(Floats& peer_weight) {
  UserOperation operation = Named("decentralized", {{"peer_selection_mode", "all"}});
  operation.peer_weight = MemoryOf(peer_weight);
  return operation;
}

UserOperation Calling(std::function<absl::Status()> function) {
  UserOperation operation;
  operation.name = "function";
  operation.function = std::move(function);
  return operation;
}

// Each of `operations` is those of a bucket of one tensor.
absl::StatusOr<std::shared_ptr<UserModel>> MakeModel(const std::shared_ptr<Backend>& backend,
                                                     std::vector<UserOperations> operations,
                                                     absl::Duration timeout = absl::Seconds(30)) {
  ModelOptions options;
  options.name = "user's";
  options.group = Group::World(backend->world_size());
  options.timeout = timeout;
  std::vector<TensorSpec> tensors;
  for (size_t i = 0; i < operations.size(); ++i) {
    tensors.push_back({.name = absl::StrCat("t", i), .count = kCount});
    options.buckets.push_back(static_cast<int32_t>(i));
  }
  return UserModel::Create(backend, std::move(options), std::move(tensors), std::move(operations));
}

// All elements of a slot's place in its bucket.
absl::Status Fill(const UserModel& model, int32_t slot, float value) {
  ASSIGN_OR_RETURN(const UserMemory memory, model.MemoryOf(SlotId(slot)));
  const Floats floats(memory.count, value);
  std::memcpy(memory.data, floats.data(), floats.size() * sizeof(float));
  return absl::OkStatus();
}

absl::StatusOr<Floats> Held(const UserModel& model, int32_t slot) {
  ASSIGN_OR_RETURN(const UserMemory memory, model.MemoryOf(SlotId(slot)));
  Floats floats(memory.count);
  std::memcpy(floats.data(), memory.data, floats.size() * sizeof(float));
  return floats;
}

using Body = std::function<absl::Status(const std::shared_ptr<Backend>&, float rank)>;

void OnTwoRanks(const Body& body) {
  const auto ended = RunRanks(2, [&](const BackendOptions& options) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> started, Backend::Start(options));
    const std::shared_ptr<Backend> backend = std::move(started);
    const absl::Status status = body(backend, static_cast<float>(options.rank.value()));
    // Nobody leaves while another one is at its last round; after one that failed nobody meets.
    Barrier(backend->control(), "end", Soon()).IgnoreError();
    return status;
  });
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
}

TEST(UserModelTest, AnAverageGoesToThePeerWeightOnceTheRoundIsComplete) {
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float rank) -> absl::Status {
    Floats peer_weight(kCount, 7);
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, {{Averaged(peer_weight)}, {}}));
    for (int round = 0; round < 2; ++round) {
      peer_weight.assign(kCount, 7);
      RETURN_IF_ERROR(Fill(*model, 0, rank + static_cast<float>(round)));
      RETURN_IF_ERROR(model->MarkReady(SlotId(0), {}));
      RETURN_IF_ERROR(model->MarkReady(SlotId(1), {}));
      // Both buckets may be done by now.
      EXPECT_THAT(peer_weight, Each(7));
      RETURN_IF_ERROR(model->FinishRound());
      EXPECT_THAT(peer_weight, Each(0.5F + static_cast<float>(round)));
      ASSIGN_OR_RETURN(const Floats held, Held(*model, 0));
      EXPECT_THAT(held, Each(rank + static_cast<float>(round))) << "the bucket stays";
    }
    return absl::OkStatus();
  });
}

TEST(UserModelTest, ARoundThatFailsLeavesPeerWeightsAndReplicas) {
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float) -> absl::Status {
    Floats peer_weight(kCount, 7);
    std::vector<Floats> replicas(3, Floats(kCount, 0));
    UserOperation ring = Named("low_precision_decentralized", {{"hierarchical", "false"}});
    const char* const names[] = {"weight", "left", "right"};
    for (size_t i = 0; i < 3; ++i) ring.replicas.emplace_back(names[i], MemoryOf(replicas[i]));
    std::vector<UserOperations> operations(3);
    operations[0].push_back(Averaged(peer_weight));
    operations[1].push_back(std::move(ring));
    operations[2].push_back(Calling([] { return absl::AbortedError("the user's error"); }));
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, std::move(operations)));
    for (int32_t slot : {0, 1, 2}) {
      RETURN_IF_ERROR(Fill(*model, slot, 3));
      // Refused once the other rank's error is here.
      model->MarkReady(SlotId(slot), {}).IgnoreError();
    }
    const absl::Status failed = model->FinishRound();
    EXPECT_THAT(failed.ToString(), HasSubstr("the user's error"));
    EXPECT_THAT(peer_weight, Each(7));
    for (const Floats& replica : replicas) EXPECT_THAT(replica, Each(0));
    EXPECT_EQ(model->FinishRound(), failed);
    return absl::OkStatus();
  });
}

TEST(UserModelTest, AFunctionSeesWhatOperationsBeforeItHaveMade) {
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float rank) -> absl::Status {
    Floats peer_weight(kCount, 7);
    Floats seen;
    std::vector<UserOperations> operations(1);
    operations[0].push_back(Averaged(peer_weight));
    operations[0].push_back(Calling([&] {
      seen = peer_weight;
      return absl::OkStatus();
    }));
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, std::move(operations)));
    RETURN_IF_ERROR(Fill(*model, 0, rank));
    RETURN_IF_ERROR(model->MarkReady(SlotId(0), {}));
    RETURN_IF_ERROR(model->FinishRound());
    EXPECT_THAT(seen, Each(0.5F));
    return absl::OkStatus();
  });
}

TEST(UserModelTest, AnAverageBesideTrainingIsAddedToTheLiveTensorUnderItsLock) {
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float rank) -> absl::Status {
    UserOperation beside = Named("async_model_average");
    beside.control = std::make_shared<AveragingControl>();
    AveragingControl& control = *beside.control;
    std::vector<UserOperations> operations(1);
    operations[0].push_back(std::move(beside));
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, std::move(operations)));
    Floats live(kCount, rank);
    RETURN_IF_ERROR(Fill(*model, 0, rank));
    RETURN_IF_ERROR(model->MarkReady(SlotId(0), MemoryOf(live)));
    for (float& element : live) element += 10;  // meanwhile
    RETURN_IF_ERROR(model->FinishRound());
    EXPECT_THAT(live, Each(10.5F));
    RETURN_IF_ERROR(control.LockWeights(Soon()));  // it was given back
    // Held by this very thread: nothing is added, and the round has failed.
    RETURN_IF_ERROR(model->MarkReady(SlotId(0), MemoryOf(live)));
    EXPECT_THAT(model->FinishRound().ToString(), HasSubstr("lock"));
    EXPECT_THAT(live, Each(10.5F));
    return control.UnlockWeights();
  });
}

TEST(UserModelTest, WhatNoRankHasUsedIsKnown) {
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float rank) -> absl::Status {
    std::vector<UserOperations> operations(2);
    for (UserOperations& bucket : operations) bucket.push_back(Named("gradient_allreduce"));
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, std::move(operations)));
    for (int32_t slot : {0, 1}) RETURN_IF_ERROR(Fill(*model, slot, rank));
    RETURN_IF_ERROR(rank == 0 ? model->MarkReady(SlotId(0), {}) : model->MarkUnused(SlotId(0)));
    RETURN_IF_ERROR(model->MarkUnused(SlotId(1)));
    RETURN_IF_ERROR(model->FinishRound());
    EXPECT_TRUE(model->UsedByAny(SlotId(0)));
    EXPECT_FALSE(model->UsedByAny(SlotId(1)));
    ASSIGN_OR_RETURN(const Floats held, Held(*model, 0));
    EXPECT_THAT(held, Each(0.5F)) << "elements count all the same";
    EXPECT_EQ(model->Statistics()["plan_generation"], 1) << "the user has chosen the order";
    EXPECT_EQ(model->Statistics()["rounds"], 1);
    return absl::OkStatus();
  });
}

TEST(UserModelTest, WhatIsNotMarkedCountsAsZeros) {
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float) -> absl::Status {
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, {{Named("gradient_allreduce")}, {}}));
    RETURN_IF_ERROR(Fill(*model, 0, 3));
    RETURN_IF_ERROR(model->MarkReady(SlotId(1), {}));
    RETURN_IF_ERROR(model->FinishRound());
    ASSIGN_OR_RETURN(const Floats held, Held(*model, 0));
    EXPECT_THAT(held, Each(0));
    EXPECT_FALSE(model->UsedByAny(SlotId(0)));
    return absl::OkStatus();
  });
}

// One whose function sleeps, and what it sleeps for: rank 0's trainer sums on a communicator of its
// own, which rank 1's does only after that.
TEST(UserModelTest, AFunctionThatBlocksHoldsUpNoOtherOperation) {
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float) -> absl::Status {
    absl::Notification may_return;
    std::vector<UserOperations> operations(2);
    operations[0].push_back(Named("gradient_allreduce"));
    operations[0].push_back(Calling([&] {
      may_return.WaitForNotification();
      return absl::OkStatus();
    }));
    operations[1].push_back(Named("gradient_allreduce"));
    operations[1].push_back(Calling([] { return absl::OkStatus(); }));
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, std::move(operations)));
    for (int32_t slot : {0, 1}) {
      RETURN_IF_ERROR(Fill(*model, slot, 3));
      RETURN_IF_ERROR(model->MarkReady(SlotId(slot), {}));
    }
    ASSIGN_OR_RETURN(const auto communicator, backend->Open(Group::World(backend->world_size())));
    RETURN_IF_ERROR(Barrier(backend->control(), "beside it", Soon()));
    may_return.Notify();
    return model->FinishRound();
  });
}

TEST(UserModelTest, AFunctionThatNeverReturnsEndsItsRoundByTheDeadline) {
  // Functions and their memory outlive the ranks.
  static absl::Notification* const never = new absl::Notification;
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float rank) -> absl::Status {
    std::vector<UserOperations> operations(1);
    operations[0].push_back(Calling([rank] {
      if (rank == 1) never->WaitForNotification();
      return absl::OkStatus();
    }));
    operations[0].front().name = "the function that hangs";
    operations[0].push_back(Named("gradient_allreduce"));
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, std::move(operations), absl::Seconds(2)));
    RETURN_IF_ERROR(Fill(*model, 0, 3));
    RETURN_IF_ERROR(model->MarkReady(SlotId(0), {}));
    const absl::Time began = absl::Now();
    const absl::Status failed = model->FinishRound();
    EXPECT_LT(absl::Now() - began, absl::Seconds(10));
    EXPECT_FALSE(failed.ok());
    if (rank == 1) {
      EXPECT_THAT(failed.ToString(), HasSubstr("the function that hangs"));
      EXPECT_THAT(failed.ToString(), HasSubstr("bucket 0"));
      EXPECT_THAT(failed.ToString(), HasSubstr("has not returned on this rank"));
    }
    const absl::Time ending = absl::Now();
    model->Detach();
    EXPECT_LT(absl::Now() - ending, absl::Seconds(5)) << "its end waits for the function";
    return absl::OkStatus();
  });
}

TEST(UserModelTest, KnowsWhenAllOptimizersHaveStepped) {
  OnTwoRanks([](const std::shared_ptr<Backend>& backend, float) -> absl::Status {
    ASSIGN_OR_RETURN(const auto model, MakeModel(backend, {{Named("gradient_allreduce")}}));
    TrainingEvent step;
    step.kind = EventKind::kAfterStep;
    step.given_count = 2;
    EXPECT_FALSE(model->Post(step));
    step.optimizer = 1;
    EXPECT_TRUE(model->Post(step));
    model->Detach();
    EXPECT_FALSE(model->Post(step));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace pelton::torch_bindings
