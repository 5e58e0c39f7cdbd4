#include "torch_bindings/csrc/c10d/operation_queue.h"

#include <atomic>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "comm/collectives.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/limits.h"
#include "core/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/c10d/from_any.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

std::string TextOf(const JobHandle& job) { return std::string(job->status().message()); }

// What a callback tells the test's thread.
class Notice {
 public:
  void Set() {
    MutexLock lock(&mutex_);
    is_set_ = true;
    changed_.SignalAll();
  }
  bool Await() {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    MutexLock lock(&mutex_);
    while (!is_set_ && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
    return is_set_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool is_set_ ABSL_GUARDED_BY(mutex_) = false;
};

class OperationQueueTest : public ::testing::Test {
 protected:
  OperationQueueTest() : fabric_(WorldSize(kRanks)) {
    auto opened = fabric_.OpenAll(CommunicatorId(3), Group::World(fabric_.world_size()));
    EXPECT_TRUE(opened.ok()) << opened.status();
    for (auto& communicator : *opened) {
      queues_.push_back(OperationQueue::Create(std::move(communicator)));
    }
  }
  ~OperationQueueTest() override {
    for (auto& queue : queues_) queue->Stop();
  }

  OperationQueue& queue(int rank) { return *queues_[static_cast<size_t>(rank)]; }

  static Job BarrierJob(absl::AnyInvocable<void()> finish = nullptr) {
    Job job;
    job.name = "barrier";
    job.launches.emplace_back([](Communicator& communicator) { return Barrier(communicator); });
    job.finish = std::move(finish);
    return job;
  }

  static Job ReceiveJob(int* target, int source, int tag = 0) {
    Job job;
    job.name = "recv";
    job.launches.emplace_back([=](Communicator& communicator) {
      return Recv(communicator, {target, 1, DType::kInt32}, Rank(source), tag);
    });
    job.lane = Job::Lane::kMessages;
    job.receive_tag = tag;
    return job;
  }

  static Job ReceiveFromAnyJob(int* target, int tag) {
    Job job = ReceiveJob(target, /*source=*/0, tag);
    job.receive_tag = tag;
    job.is_from_any = true;
    const auto source = std::make_shared<std::atomic<int>>(-1);
    job.launches[0] = [=](Communicator& communicator) {
      return RecvFromAny(communicator, {target, 1, DType::kInt32}, tag, *source);
    };
    return job;
  }

  static Job SendJob(int* source, int destination, int tag = 0) {
    Job job;
    job.name = "send";
    job.launches.emplace_back([=](Communicator& communicator) {
      return Send(communicator, {source, 1, DType::kInt32}, Rank(destination), tag);
    });
    job.lane = Job::Lane::kMessages;
    return job;
  }

  SimFabric fabric_;
  std::vector<std::shared_ptr<OperationQueue>> queues_;
};

TEST_F(OperationQueueTest, RunsAJobOnTheThreadThatWaits) {
  const JobHandle peer = queue(1).Enqueue(BarrierJob());
  std::thread::id finished_on;
  const JobHandle job = queue(0).Run(BarrierJob([&] { finished_on = std::this_thread::get_id(); }));
  ASSERT_TRUE(job->done());
  EXPECT_EQ(job->status(), absl::OkStatus());
  EXPECT_EQ(finished_on, std::this_thread::get_id());
  EXPECT_TRUE(queue(1).Wait(peer, absl::Now() + absl::Seconds(60)));
}

TEST_F(OperationQueueTest, DrivesWithoutAnybodyWaiting) {
  Notice done;
  const JobHandle job = queue(0).Enqueue(BarrierJob());
  queue(0).OnDone(job, [&](const absl::Status& status) {
    EXPECT_EQ(status, absl::OkStatus());
    done.Set();
  });
  queue(1).Enqueue(BarrierJob());
  EXPECT_TRUE(done.Await());
}

TEST_F(OperationQueueTest, CallsBackAtOnceWhenTheJobIsDone) {
  const JobHandle job = queue(0).Run(Job());
  bool called = false;
  queue(0).OnDone(job, [&](const absl::Status&) { called = true; });
  EXPECT_TRUE(called);
}

TEST_F(OperationQueueTest, FinishesCollectivesInTheOrderOfTheirCalls) {
  constexpr int kJobs = 50;
  std::vector<int> order;
  JobHandle last;
  for (int i = 0; i < kJobs; ++i) {
    queue(1).Enqueue(BarrierJob());
    last = queue(0).Enqueue(BarrierJob([&order, i] { order.push_back(i); }));
  }
  ASSERT_TRUE(queue(0).Wait(last, absl::Now() + absl::Seconds(60)));
  std::vector<int> expected(kJobs);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(queue(0).sequence(), kJobs);
}

TEST_F(OperationQueueTest, LaunchesMoreThanTheCommunicatorHolds) {
  constexpr size_t kLaunches = 3 * limits::kMaxOperationsInFlight;
  std::vector<int> sent(kLaunches), received(kLaunches, -1);
  std::iota(sent.begin(), sent.end(), 0);
  Job sends, receives;
  for (size_t i = 0; i < kLaunches; ++i) {
    sends.launches.push_back(std::move(SendJob(&sent[i], 1).launches[0]));
    receives.launches.push_back(std::move(ReceiveJob(&received[i], 0).launches[0]));
  }
  queue(0).Enqueue(std::move(sends));
  const JobHandle job = queue(1).Run(std::move(receives));
  EXPECT_EQ(job->status(), absl::OkStatus());
  EXPECT_EQ(received, sent);
}

TEST_F(OperationQueueTest, AWaiterReturnsWhileAnotherOneStillDrives) {
  int slow = 0, quick = 0, value = 7;
  std::thread waits_long([&] {
    EXPECT_EQ(queue(0).Run(ReceiveJob(&slow, 1, /*tag=*/1))->status(), absl::OkStatus());
  });
  queue(1).Enqueue(SendJob(&value, 0, /*tag=*/2));
  EXPECT_EQ(queue(0).Run(ReceiveJob(&quick, 1, /*tag=*/2))->status(), absl::OkStatus());
  EXPECT_EQ(quick, 7);
  queue(1).Enqueue(SendJob(&value, 0, /*tag=*/1));
  waits_long.join();
  EXPECT_EQ(slow, 7);
}

TEST_F(OperationQueueTest, ACallbackMayWaitForAnotherJob) {
  Notice done;
  const JobHandle second_peer = queue(1).Enqueue(BarrierJob());
  queue(1).Enqueue(BarrierJob());
  const JobHandle first = queue(0).Enqueue(BarrierJob());
  queue(0).OnDone(first, [&](const absl::Status&) {
    EXPECT_EQ(queue(0).Run(BarrierJob())->status(), absl::OkStatus());
    done.Set();
  });
  EXPECT_TRUE(done.Await());
}

TEST_F(OperationQueueTest, ACallbackMayWaitForWhatALaterJobsCallbackDoes) {
  for (auto& queue : queues_) {
    const auto later = std::make_shared<Notice>();
    queue->OnDone(queue->Enqueue(BarrierJob()), [&queue, later](const absl::Status&) {
      queue->OnDone(queue->Enqueue(BarrierJob()), [later](const absl::Status&) { later->Set(); });
      EXPECT_TRUE(later->Await());
    });
  }
  Notice last[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    queue(rank).OnDone(queue(rank).Enqueue(BarrierJob()),
                       [&last, rank](const absl::Status&) { last[rank].Set(); });
  }
  for (Notice& notice : last) EXPECT_TRUE(notice.Await());
  for (auto& queue : queues_) queue->Stop();  // after the callbacks that use this test's locals
}

TEST_F(OperationQueueTest, AWaitThatEndsEarlyLeavesTheJobAlone) {
  const JobHandle job = queue(0).Enqueue(BarrierJob());
  EXPECT_FALSE(queue(0).Wait(job, absl::Now()));
  queue(1).Enqueue(BarrierJob());
  EXPECT_TRUE(queue(0).Wait(job, absl::Now() + absl::Seconds(60)));
  EXPECT_EQ(job->status(), absl::OkStatus());
}

TEST_F(OperationQueueTest, AJobPastItsDeadlineNamesTheMissingRanksEverywhere) {
  Job late = BarrierJob();
  late.deadline = absl::Now();
  const JobHandle job = queue(0).Run(std::move(late));
  EXPECT_EQ(job->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(TextOf(job), HasSubstr("barrier: Timed out after 0 ms; rank 0: operation 1"));
  EXPECT_THAT(TextOf(job), HasSubstr("waiting for rank(s) 1"));
  EXPECT_THAT(TextOf(queue(1).Run(BarrierJob())), HasSubstr("rank 0 aborted"));
}

TEST_F(OperationQueueTest, AJobThatNobodyWaitsForMeetsItsDeadlineToo) {
  Notice done;
  Job late = BarrierJob();
  late.deadline = absl::Now() + absl::Milliseconds(1);
  queue(0).OnDone(queue(0).Enqueue(std::move(late)), [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    done.Set();
  });
  EXPECT_TRUE(done.Await());
}

TEST_F(OperationQueueTest, ALaunchThatIsRefusedFailsItsJobOnly) {
  Job refused = BarrierJob([] { FAIL() << "must not finish"; });
  refused.launches.emplace_back(
      [](Communicator&) { return absl::InvalidArgumentError("planted"); });
  const JobHandle job = queue(0).Enqueue(std::move(refused));
  EXPECT_EQ(queue(1).Run(BarrierJob())->status(), absl::OkStatus());
  ASSERT_TRUE(queue(0).Wait(job, absl::Now() + absl::Seconds(60)));
  EXPECT_EQ(TextOf(job), "barrier: planted");
  queue(1).Enqueue(BarrierJob());
  EXPECT_EQ(queue(0).Run(BarrierJob())->status(), absl::OkStatus());
}

TEST_F(OperationQueueTest, WhatFinishThrowsIsTheJobsStatus) {
  bool has_ended = false;
  Job fails = BarrierJob([] { throw std::runtime_error("planted\nwith a second line"); });
  fails.ended = [&] { has_ended = true; };
  queue(1).Enqueue(BarrierJob());
  const JobHandle job = queue(0).Run(std::move(fails));
  EXPECT_EQ(TextOf(job), "barrier: its results could not be stored: planted");
  EXPECT_TRUE(has_ended);
  queue(1).Enqueue(BarrierJob());
  EXPECT_EQ(queue(0).Run(BarrierJob())->status(), absl::OkStatus());
}

TEST_F(OperationQueueTest, WhatFinishThrowsOnTheQueuesThreadIsTheJobsStatus) {
  Notice done;
  Job fails = BarrierJob([] { throw 7; });
  queue(0).OnDone(queue(0).Enqueue(std::move(fails)), [&](const absl::Status& status) {
    EXPECT_EQ(status, absl::InternalError("barrier: its results could not be stored"));
    done.Set();
  });
  queue(1).Enqueue(BarrierJob());
  EXPECT_TRUE(done.Await());
}

TEST_F(OperationQueueTest, MessagesThatNobodyMatchesHoldUpNoCollective) {
  constexpr size_t kMessages = limits::kMaxOperationsInFlight - 32;
  std::vector<int> received(kMessages, -1), sent(kMessages);
  std::iota(sent.begin(), sent.end(), 0);
  std::vector<JobHandle> receives;
  for (int& place : received) receives.push_back(queue(0).Enqueue(ReceiveJob(&place, 1)));
  for (int i = 0; i < 20; ++i) {
    queue(1).Enqueue(BarrierJob());
    EXPECT_EQ(queue(0).Run(BarrierJob())->status(), absl::OkStatus());
  }
  for (int& value : sent) queue(1).Enqueue(SendJob(&value, 0));
  for (const JobHandle& receive : receives) {
    ASSERT_TRUE(queue(0).Wait(receive, absl::Now() + absl::Seconds(60)));
    EXPECT_EQ(receive->status(), absl::OkStatus());
  }
  EXPECT_EQ(received, sent);
}

TEST_F(OperationQueueTest, AReceiveFromAnyRankLetsOthersGoBy) {
  int from_any = 0, quick = 0, value = 7;
  const JobHandle early = queue(0).Enqueue(ReceiveFromAnyJob(&from_any, /*tag=*/1));
  queue(1).Enqueue(SendJob(&value, 0, /*tag=*/2));
  EXPECT_EQ(queue(0).Run(ReceiveJob(&quick, 1, /*tag=*/2))->status(), absl::OkStatus());
  EXPECT_EQ(quick, 7);
  EXPECT_FALSE(early->done());
  queue(1).Enqueue(SendJob(&value, 0, /*tag=*/1));
  ASSERT_TRUE(queue(0).Wait(early, absl::Now() + absl::Seconds(60)));
  EXPECT_EQ(from_any, 7);
}

TEST_F(OperationQueueTest, TheOldestReceiveOfATagGetsTheFirstMessage) {
  int sent[] = {10, 20, 30}, received[3] = {};
  const JobHandle jobs[] = {queue(0).Enqueue(ReceiveFromAnyJob(&received[0], /*tag=*/1)),
                            queue(0).Enqueue(ReceiveJob(&received[1], 1, /*tag=*/1)),
                            queue(0).Enqueue(ReceiveFromAnyJob(&received[2], /*tag=*/1))};
  for (int& value : sent) queue(1).Enqueue(SendJob(&value, 0, /*tag=*/1));
  for (const JobHandle& job : jobs) {
    ASSERT_TRUE(queue(0).Wait(job, absl::Now() + absl::Seconds(60)));
    EXPECT_EQ(job->status(), absl::OkStatus());
  }
  EXPECT_THAT(received, ElementsAre(10, 20, 30));
}

TEST_F(OperationQueueTest, AReceiveFromAnyRankEndsInTime) {
  int value = 0;
  Job late = ReceiveFromAnyJob(&value, /*tag=*/5);
  late.deadline = absl::Now() + absl::Milliseconds(1);
  const JobHandle job = queue(0).Run(std::move(late));
  EXPECT_EQ(job->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(TextOf(job), HasSubstr("rank 0: no rank has sent a message of tag 5"));
}

TEST_F(OperationQueueTest, AReceiveFromAnyRankEndsWhenNobodyIsLeft) {
  int value = 0;
  const JobHandle job = queue(0).Enqueue(ReceiveFromAnyJob(&value, /*tag=*/5));
  queue(1).Stop();
  queues_.pop_back();
  ASSERT_TRUE(queue(0).Wait(job, absl::Now() + absl::Seconds(60)));
  EXPECT_EQ(job->status(), absl::UnavailableError("recv: all other ranks have left"));
}

// Otherwise ranks that are told different things would launch the rest in different places.
TEST_F(OperationQueueTest, AJobThatLaunchesMoreKeepsItsPlace) {
  std::vector<std::string> order[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    Job longer = BarrierJob([&order, rank] { order[rank].push_back("longer"); });
    longer.more = [&order, rank] {
      std::vector<Job::Launch> more;
      if (order[rank].size() < 2) more = BarrierJob().launches;
      order[rank].push_back("more");
      return more;
    };
    queue(rank).Enqueue(std::move(longer));
  }
  JobHandle later[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    later[rank] =
        queue(rank).Enqueue(BarrierJob([&order, rank] { order[rank].push_back("next"); }));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(queue(rank).Wait(later[rank], absl::Now() + absl::Seconds(60)));
    EXPECT_THAT(order[rank], ElementsAre("more", "more", "more", "longer", "next"));
  }
}

TEST_F(OperationQueueTest, StopAbortsWhatIsInFlightAndRefusesTheRest) {
  const JobHandle job = queue(0).Enqueue(BarrierJob());
  queue(0).Stop();
  ASSERT_TRUE(job->done());
  EXPECT_THAT(TextOf(job), HasSubstr("1 operation(s) were in flight"));
  EXPECT_EQ(queue(0).Run(BarrierJob())->status(),
            absl::FailedPreconditionError("barrier: the process group is shut down"));
}

TEST_F(OperationQueueTest, StopWithNothingInFlightLeavesThePeersAlone) {
  const JobHandle peer = queue(1).Enqueue(BarrierJob());
  EXPECT_EQ(queue(0).Run(BarrierJob())->status(), absl::OkStatus());
  queue(0).Stop();
  ASSERT_TRUE(queue(1).Wait(peer, absl::Now() + absl::Seconds(60)));
  EXPECT_EQ(peer->status(), absl::OkStatus());
}

}  // namespace
}  // namespace pelton::torch_bindings
