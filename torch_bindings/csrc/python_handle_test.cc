// What a caller of a queue's operation is told, and of which ranks.
#include "torch_bindings/csrc/python_handle.h"

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/collectives.h"
#include "comm/group.h"
#include "comm/lane/lane.h"
#include "comm/transport/sim/sim_fabric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/outcome.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(PythonHandle& handle) {
  try {
    handle.Wait();
  } catch (const StatusError& error) {
    return error.status().ToString();
  }
  return "none";
}

// Ranks 4 and 12 of the world, which are 0 and 1 of their group.
// Threads: the test's and those of the lanes. Owns: both ranks.
class PythonHandleTest : public ::testing::Test {
 protected:
  PythonHandleTest() {
    auto communicators = *fabric_.OpenAll(CommunicatorId(3), Group::World(WorldSize(2)));
    for (auto& communicator : communicators) {
      lanes_.push_back(lane::Lane::Create(std::move(communicator)));
    }
  }
  ~PythonHandleTest() override {
    for (const auto& lane : lanes_) lane->Stop();
  }

  // What a launch that answers with `status` ends as.
  lane::JobHandle Failing(absl::Status status) {
    lane::Job job;
    job.name = "allreduce";
    job.launches.emplace_back([status = std::move(status)](
                                  Communicator&) -> absl::StatusOr<Completion> { return status; });
    return lanes_[0]->Enqueue(std::move(job));
  }
  lane::JobHandle Barrier(size_t rank) {
    lane::Job job;
    job.name = "barrier";
    job.launches.emplace_back(
        [](Communicator& communicator) { return pelton::Barrier(communicator); });
    return lanes_[rank]->Enqueue(std::move(job));
  }
  lane::JobHandle Done() { return lanes_[0]->Run(lane::Job()); }
  PythonHandle Of(lane::JobHandle job) { return {lanes_[0], std::move(job), outcome_, group_}; }

  SimFabric fabric_{WorldSize(2)};
  std::vector<std::shared_ptr<lane::Lane>> lanes_;
  const PythonHandle::SharedGroup group_ =
      std::make_shared<const Group>(Group{.members = {Rank(4), Rank(12)}});
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

TEST_F(PythonHandleTest, ADifferenceNamesRanksOfTheWorld) {
  PythonHandle handle = Of(Failing(
      absl::InvalidArgumentError("count is 4 on rank 0 and 5 on rank 1; rank 12 and no rank")));
  EXPECT_EQ(ErrorOf(handle),
            "INVALID_ARGUMENT: allreduce: count is 4 on rank 4 and 5 on rank 12; rank 12 and no "
            "rank");
}

TEST_F(PythonHandleTest, OtherErrorsHaveNamedTheirRanksThemselves) {
  PythonHandle handle = Of(Failing(absl::UnavailableError("rank 1 has died")));
  EXPECT_EQ(ErrorOf(handle), "UNAVAILABLE: allreduce: rank 1 has died");
  EXPECT_TRUE(handle.done());
}

TEST_F(PythonHandleTest, WhereShapesDifferThisRanksIsNamed) {
  outcome_->result = torch::zeros({2, 3});
  PythonHandle handle = Of(Failing(absl::InvalidArgumentError("the shapes of the tensors differ")));
  EXPECT_THAT(ErrorOf(handle), HasSubstr("differ; this rank's is [2, 3]"));
}

TEST_F(PythonHandleTest, IsDoneOnceWhatFollowsIs) {
  outcome_->result = torch::ones({2});
  lane::JobHandle first = Done();
  outcome_->next_lane = lanes_[0];
  outcome_->next = Barrier(0);
  PythonHandle handle = Of(std::move(first));
  EXPECT_FALSE(handle.done());
  Barrier(1);
  EXPECT_TRUE(handle.Wait().is_same(outcome_->result));
  EXPECT_TRUE(handle.done());
  EXPECT_TRUE(handle.Wait().is_same(outcome_->result)) << "it may be called again";
}

TEST_F(PythonHandleTest, WhatFollowsKnowsTheRanksOfAnotherGroup) {
  outcome_->next_lane = lanes_[0];
  outcome_->next = Failing(absl::InvalidArgumentError("count is 4 on rank 0"));
  PythonHandle handle = Of(Done());
  EXPECT_EQ(ErrorOf(handle), "INVALID_ARGUMENT: allreduce: count is 4 on rank 0");
}

TEST_F(PythonHandleTest, AFailureIsOneAlthoughTheJobsEndedWell) {
  outcome_->result = torch::ones({2});
  outcome_->failure = absl::InvalidArgumentError("allgather: tensor: is Float [2] on rank 0");
  PythonHandle handle = Of(Done());
  EXPECT_EQ(ErrorOf(handle), outcome_->failure.ToString());
}

TEST_F(PythonHandleTest, ASignalHandlerDoesNotWait) {
  PythonHandle handle = Of(Barrier(0));
  {
    const SignalScope handler;
    EXPECT_THAT(ErrorOf(handle), HasSubstr("FAILED_PRECONDITION: called by a signal handler"));
  }
  Barrier(1);
  EXPECT_EQ(ErrorOf(handle), "none");
}

}  // namespace
}  // namespace pelton::torch_bindings
