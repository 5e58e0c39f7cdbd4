// What PyTorch's callers see of an operation while it runs, when it ends and when it fails.
#include "torch_bindings/csrc/c10d/work.h"

#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/collectives.h"
#include "comm/lane/lane.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/long_wait.h"
#include "core/base/moving_deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/test_errors.h"

namespace pelton::torch_bindings {
namespace {

using ::c10d::OpType;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Two ranks, each of whose barriers ends once the other one has begun its own.
// Threads: the test's and those of the lanes. Owns: both ranks.
class WorkTest : public ::testing::Test {
 protected:
  using Work = c10::intrusive_ptr<QueuedWork>;

  WorkTest() {
    auto communicators = *fabric_.OpenAll(CommunicatorId(3), Group::World(WorldSize(2)));
    for (auto& communicator : communicators) {
      lanes_.push_back(lane::Lane::Create(std::move(communicator)));
    }
  }
  ~WorkTest() override {
    for (const auto& lane : lanes_) lane->Stop();
  }

  lane::JobHandle Barrier(size_t rank) {
    lane::Job job;
    job.name = "barrier";
    job.launches.emplace_back(
        [](Communicator& communicator) { return pelton::Barrier(communicator); });
    return lanes_[rank]->Enqueue(std::move(job));
  }
  // Rank 0's barrier, which waits for rank 1's.
  Work Begin(QueuedWork::Results results = {}) {
    return c10::make_intrusive<QueuedWork>(0, OpType::BARRIER, lanes_[0], standstill_, Barrier(0),
                                           std::move(results));
  }
  void LetEnd() { Barrier(1); }

  SimFabric fabric_{WorldSize(2)};
  const Standstill standstill_;
  std::vector<std::shared_ptr<lane::Lane>> lanes_;
};

TEST_F(WorkTest, AWaitThatTimesOutNamesTheOperationWhichGoesOn) {
  const Work work = Begin();
  EXPECT_EQ(ErrorOf([&] { work->wait(milliseconds(20)); }),
            "DEADLINE_EXCEEDED: rank 0: BARRIER #1 was not done within the 20 ms that wait() was "
            "given");
  EXPECT_FALSE(work->isCompleted());
  EXPECT_EQ(work->exception(), nullptr);
  LetEnd();
  EXPECT_TRUE(work->wait());
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->isSuccess());
  EXPECT_EQ(work->exception(), nullptr);
}

TEST_F(WorkTest, AWaitDoesNotTimeOutWhileARankIsAwaited) {
  Standstill standstill;
  const lane::JobHandle job = Barrier(0);
  const auto waited_for = c10::make_intrusive<QueuedWork>(0, OpType::BARRIER, lanes_[0], standstill,
                                                          job, QueuedWork::Results());
  standstill.Begin(absl::Now());
  std::thread waiter(
      [&] { EXPECT_EQ(ErrorOf([&] { waited_for->wait(milliseconds(1)); }), "none"); });
  // Another caller's wait for the same operation, whose deadline comes nearer.
  const auto other = c10::make_intrusive<QueuedWork>(0, OpType::BARRIER, lanes_[0], standstill_,
                                                     job, QueuedWork::Results());
  EXPECT_THAT(ErrorOf([&] { other->wait(milliseconds(50)); }), HasSubstr("DEADLINE_EXCEEDED"));
  LetEnd();
  waiter.join();
}

TEST_F(WorkTest, SeveralThreadsMayWaitForOneOperation) {
  const Work work = Begin();
  std::atomic<int> returned{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      work->wait();
      EXPECT_TRUE(work->isSuccess());
      ++returned;
    });
  }
  LetEnd();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(returned.load(), 3);
}

TEST_F(WorkTest, AnAbortNamesTheCallAndEndsBothRanks) {
  const Work work = Begin();
  work->abort();
  const std::string error = ErrorOf([&] { work->wait(); });
  EXPECT_THAT(error, HasSubstr("rank 0 called abort() on BARRIER #1"));
  EXPECT_TRUE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
  EXPECT_EQ(ErrorOf([&] { std::rethrow_exception(work->exception()); }), error);
  const lane::JobHandle peer = Barrier(1);
  lanes_[1]->Wait(peer, absl::InfiniteFuture());
  EXPECT_THAT(peer->status().ToString(), HasSubstr("rank 0 called abort()"));
}

TEST_F(WorkTest, AFutureHasTheResultsOnceTheOperationHasEnded) {
  const at::Tensor tensor = torch::ones({2});
  const Work work = Begin({.tensors = {tensor}});
  const auto future = work->getFuture();
  EXPECT_EQ(work->getFuture(), future);
  EXPECT_FALSE(future->completed());
  LetEnd();
  future->wait();
  EXPECT_TRUE(future->value().toTensorVector().at(0).is_same(tensor));

  const Work nested = Begin({.tensors = {tensor, tensor}, .is_nested = true});
  LetEnd();
  nested->wait();
  const c10::IValue value = nested->getFuture()->value();  // it has ended already
  ASSERT_EQ(value.toListRef().size(), 1U) << "a list of one list";
  EXPECT_EQ(value.toListRef()[0].toTensorVector().size(), 2U);
}

TEST_F(WorkTest, AFutureHasTheErrorOfItsOperation) {
  const Work work = Begin({.tensors = {torch::ones({2})}});
  const auto future = work->getFuture();
  work->abort();
  EXPECT_THAT(ErrorOf([&] { future->waitAndThrow(); }), HasSubstr("rank 0 called abort()"));
}

TEST_F(WorkTest, AReceiveFromAnyKnowsItsSourceOnceItIsFound) {
  const auto found = std::make_shared<std::atomic<int>>(-1);
  const Work work = Begin({.source = 7, .found_source = found});
  EXPECT_EQ(work->sourceRank(), -1);
  found->store(1);
  EXPECT_EQ(work->sourceRank(), 1);
  EXPECT_EQ(Begin({.source = 7})->sourceRank(), 7);
}

TEST_F(WorkTest, ItsResultsLiveAsLongAsItDoes) {
  bool is_freed = false;
  float memory = 0;
  Work work = Begin({.tensors = {torch::from_blob(
                         &memory, {1}, [&is_freed](void*) { is_freed = true; }, at::kFloat)}});
  LetEnd();
  work->wait();
  EXPECT_FALSE(is_freed);
  work.reset();
  EXPECT_TRUE(is_freed);
}

TEST_F(WorkTest, MayBeWaitedForAfterItsLaneHasStopped) {
  const Work work = Begin();
  lanes_[0]->Stop();
  EXPECT_NE(ErrorOf([&] { work->wait(); }), "none") << "what was under way has failed";
  EXPECT_TRUE(work->isCompleted());
}

TEST_F(WorkTest, ASignalHandlerIsToldToWaitLater) {
  const Work work = Begin();
  {
    const CallName outer("all_reduce");
    const SignalScope handler;
    const std::string error = ErrorOf([&] { work->wait(); });
    EXPECT_THAT(error, HasSubstr("FAILED_PRECONDITION: called by a signal handler while its thread "
                                 "waits in all_reduce"));
    EXPECT_THAT(error, HasSubstr("have the handler set a flag"));
    std::thread([] { EXPECT_TRUE(CheckNotInHandler().ok()); }).join();
  }
  LetEnd();
  EXPECT_TRUE(work->wait());
}

}  // namespace
}  // namespace pelton::torch_bindings
