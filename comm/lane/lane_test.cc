#include "comm/lane/lane.h"

#include <atomic>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/lane/job.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/sim_executor.h"
#include "core/base/limits.h"
#include "core/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::lane {
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

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

class LaneTest : public ::testing::Test {
 protected:
  LaneTest() : fabric_(WorldSize(kRanks)) {
    auto opened = fabric_.OpenAll(CommunicatorId(3), Group::World(fabric_.world_size()));
    EXPECT_TRUE(opened.ok()) << opened.status();
    for (auto& communicator : *opened) {
      lanes_.push_back(Lane::Create(std::move(communicator)));
    }
  }
  ~LaneTest() override {
    for (auto& lane : lanes_) lane->Stop();
  }

  Lane& lane(int rank) { return *lanes_[static_cast<size_t>(rank)]; }

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
    job.queue = Job::Queue::kReceives;
    job.receive_tag = tag;
    return job;
  }

  static Job ReceiveFromAnyJob(int* target, int tag) {
    Job job = ReceiveJob(target, /*source=*/0, tag);
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
    job.queue = Job::Queue::kSends;
    return job;
  }

  SimFabric fabric_;
  std::vector<std::shared_ptr<Lane>> lanes_;
};

TEST_F(LaneTest, RunsAJobOnTheThreadThatWaits) {
  const JobHandle peer = lane(1).Enqueue(BarrierJob());
  std::thread::id finished_on;
  const JobHandle job = lane(0).Run(BarrierJob([&] { finished_on = std::this_thread::get_id(); }));
  ASSERT_TRUE(job->done());
  EXPECT_EQ(job->status(), absl::OkStatus());
  EXPECT_EQ(finished_on, std::this_thread::get_id());
  EXPECT_TRUE(lane(1).Wait(peer, Soon()));
}

TEST_F(LaneTest, DrivesWithoutAnybodyWaiting) {
  Notice done;
  const JobHandle job = lane(0).Enqueue(BarrierJob());
  lane(0).OnDone(job, [&](const absl::Status& status) {
    EXPECT_EQ(status, absl::OkStatus());
    done.Set();
  });
  lane(1).Enqueue(BarrierJob());
  EXPECT_TRUE(done.Await());
}

// Everything ends with the hundredth step of progress.
class Hundredth final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  bool Progress() override {
    ForwardingCommunicator::Progress();
    return ++steps_ == 100;
  }
  State Query(Completion completion) override {
    return steps_ < 100 ? State{} : ForwardingCommunicator::Query(completion);
  }

 private:
  std::atomic<int> steps_{0};
};

TEST(LaneAloneTest, ACollectiveThatEndsSoonCostsNoHop) {
  SimFabric fabric(WorldSize(1));
  auto world = fabric.OpenAll(CommunicatorId(3), Group::World(fabric.world_size()));
  ASSERT_TRUE(world.ok());
  int attendants = 0;
  const auto lane = Lane::Create(std::make_shared<Hundredth>(std::move((*world)[0])),
                                 [&](Lane&) { ++attendants; });
  Job job;
  job.launches.emplace_back([](Communicator& communicator) { return Barrier(communicator); });
  EXPECT_TRUE(lane->Enqueue(std::move(job))->done());
  EXPECT_EQ(attendants, 0);
  lane->Stop();
}

// Ends nothing until it is opened.
class Gate final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  State Query(Completion completion) override {
    return is_open ? ForwardingCommunicator::Query(completion) : State{};
  }
  bool is_open = false;
};

// Threads: one. Owns: the number of its kicks.
class CountedVisit final : public Visit {
 public:
  using Visit::Visit;
  int kicks = 0;

 private:
  void Kick() override { ++kicks; }
};

// The callback would wait in vain, if the thread that calls it were to end the other job.
TEST(LaneAloneTest, ACallbackMayWaitForAJobThatItsThreadHasFinished) {
  SimFabric fabric(WorldSize(1));
  auto world = fabric.OpenAll(CommunicatorId(3), Group::World(fabric.world_size()));
  ASSERT_TRUE(world.ok());
  const auto gate = std::make_shared<Gate>(std::move((*world)[0]));
  const auto lane = Lane::Create(gate, [](Lane&) {});
  const auto enqueue = [&](bool finish_lasts) {
    Job job;
    job.launches.emplace_back([](Communicator& communicator) { return Barrier(communicator); });
    job.finish = [] {};
    job.finish_lasts = finish_lasts;
    return lane->Enqueue(std::move(job));
  };
  const JobHandle first = enqueue(false);
  const JobHandle second = enqueue(true);
  CountedVisit visit(*lane, Visit::Aim::kJob, absl::InfiniteFuture(), second);
  CountedVisit attendant(*lane, Visit::Aim::kAttend, absl::InfiniteFuture());
  ASSERT_EQ(visit.Step(), Visit::Next::kGoOn);
  ASSERT_EQ(attendant.Step(), Visit::Next::kStandBy);
  int kicks = -1;
  lane->OnDone(first, [&](const absl::Status&) { kicks = attendant.kicks; });
  gate->is_open = true;
  Visit::Next next;
  while ((next = visit.Step()) == Visit::Next::kGoOn) continue;
  ASSERT_EQ(next, Visit::Next::kCall);
  EXPECT_FALSE(second->done());
  EXPECT_EQ(attendant.kicks, 0) << "there is nothing to drive";
  visit.Call();
  EXPECT_EQ(kicks, 1) << "somebody ends the second";
  while (visit.Step() != Visit::Next::kEnd) continue;
  EXPECT_TRUE(second->done());
  lane->Stop();
  EXPECT_EQ(attendant.Step(), Visit::Next::kEnd);
}

TEST_F(LaneTest, CallsBackAtOnceWhenTheJobIsDone) {
  const JobHandle job = lane(0).Run(Job());
  bool called = false;
  lane(0).OnDone(job, [&](const absl::Status&) { called = true; });
  EXPECT_TRUE(called);
}

TEST_F(LaneTest, FinishesCollectivesInTheOrderOfTheirCalls) {
  constexpr int kJobs = 50;
  std::vector<int> order;
  JobHandle last;
  for (int i = 0; i < kJobs; ++i) {
    lane(1).Enqueue(BarrierJob());
    last = lane(0).Enqueue(BarrierJob([&order, i] { order.push_back(i); }));
  }
  ASSERT_TRUE(lane(0).Wait(last, Soon()));
  std::vector<int> expected(kJobs);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(lane(0).sequence(), kJobs);
}

TEST_F(LaneTest, LaunchesMoreThanTheCommunicatorHolds) {
  constexpr size_t kLaunches = 3 * limits::kMaxOperationsInFlight;
  std::vector<int> sent(kLaunches), received(kLaunches, -1);
  std::iota(sent.begin(), sent.end(), 0);
  Job sends, receives;
  for (size_t i = 0; i < kLaunches; ++i) {
    sends.launches.push_back(std::move(SendJob(&sent[i], 1).launches[0]));
    receives.launches.push_back(std::move(ReceiveJob(&received[i], 0).launches[0]));
  }
  lane(0).Enqueue(std::move(sends));
  const JobHandle job = lane(1).Run(std::move(receives));
  EXPECT_EQ(job->status(), absl::OkStatus());
  EXPECT_EQ(received, sent);
}

TEST_F(LaneTest, AWaiterReturnsWhileAnotherOneStillDrives) {
  int slow = 0, quick = 0, value = 7;
  std::thread waits_long(
      [&] { EXPECT_EQ(lane(0).Run(ReceiveJob(&slow, 1, /*tag=*/1))->status(), absl::OkStatus()); });
  lane(1).Enqueue(SendJob(&value, 0, /*tag=*/2));
  EXPECT_EQ(lane(0).Run(ReceiveJob(&quick, 1, /*tag=*/2))->status(), absl::OkStatus());
  EXPECT_EQ(quick, 7);
  lane(1).Enqueue(SendJob(&value, 0, /*tag=*/1));
  waits_long.join();
  EXPECT_EQ(slow, 7);
}

TEST_F(LaneTest, ACallbackMayWaitForAnotherJob) {
  Notice done;
  const JobHandle second_peer = lane(1).Enqueue(BarrierJob());
  lane(1).Enqueue(BarrierJob());
  const JobHandle first = lane(0).Enqueue(BarrierJob());
  lane(0).OnDone(first, [&](const absl::Status&) {
    EXPECT_EQ(lane(0).Run(BarrierJob())->status(), absl::OkStatus());
    done.Set();
  });
  EXPECT_TRUE(done.Await());
}

TEST_F(LaneTest, ACallbackMayWaitForWhatALaterJobsCallbackDoes) {
  for (auto& lane : lanes_) {
    const auto later = std::make_shared<Notice>();
    lane->OnDone(lane->Enqueue(BarrierJob()), [&lane, later](const absl::Status&) {
      lane->OnDone(lane->Enqueue(BarrierJob()), [later](const absl::Status&) { later->Set(); });
      EXPECT_TRUE(later->Await());
    });
  }
  Notice last[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    lane(rank).OnDone(lane(rank).Enqueue(BarrierJob()),
                      [&last, rank](const absl::Status&) { last[rank].Set(); });
  }
  for (Notice& notice : last) EXPECT_TRUE(notice.Await());
  for (auto& lane : lanes_) lane->Stop();  // after the callbacks that use this test's locals
}

TEST_F(LaneTest, AWaitThatEndsEarlyLeavesTheJobAlone) {
  const JobHandle job = lane(0).Enqueue(BarrierJob());
  EXPECT_FALSE(lane(0).Wait(job, absl::Now()));
  lane(1).Enqueue(BarrierJob());
  EXPECT_TRUE(lane(0).Wait(job, Soon()));
  EXPECT_EQ(job->status(), absl::OkStatus());
}

TEST_F(LaneTest, AJobPastItsDeadlineNamesTheMissingRanksEverywhere) {
  Job late = BarrierJob();
  late.deadline = absl::Now();
  const JobHandle job = lane(0).Run(std::move(late));
  EXPECT_EQ(job->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(TextOf(job), HasSubstr("barrier: Timed out after 0 ms; rank 0: operation 1"));
  EXPECT_THAT(TextOf(job), HasSubstr("waiting for rank(s) 1 in barrier"));
  EXPECT_THAT(TextOf(lane(1).Run(BarrierJob())), HasSubstr("rank 0 aborted"));
}

TEST_F(LaneTest, AJobPastItsDeadlineMaySayWhatThatMeans) {
  Job late = BarrierJob();
  late.deadline = absl::Now();
  late.overdue = absl::UnavailableError("rank 0 has left");
  const JobHandle job = lane(0).Run(std::move(late));
  EXPECT_EQ(job->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(TextOf(job), HasSubstr("barrier: rank 0 has left; rank 0: operation 1"));
  EXPECT_THAT(TextOf(lane(1).Run(BarrierJob())), HasSubstr("rank 0 aborted: rank 0 has left"));
}

TEST_F(LaneTest, AJobThatNobodyWaitsForMeetsItsDeadlineToo) {
  Notice done;
  Job late = BarrierJob();
  late.deadline = absl::Now() + absl::Milliseconds(1);
  lane(0).OnDone(lane(0).Enqueue(std::move(late)), [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    done.Set();
  });
  EXPECT_TRUE(done.Await());
}

TEST_F(LaneTest, ALaunchThatIsRefusedFailsItsJobOnly) {
  Job refused = BarrierJob([] { FAIL() << "must not finish"; });
  refused.launches.emplace_back(
      [](Communicator&) { return absl::InvalidArgumentError("planted"); });
  const JobHandle job = lane(0).Enqueue(std::move(refused));
  EXPECT_EQ(lane(1).Run(BarrierJob())->status(), absl::OkStatus());
  ASSERT_TRUE(lane(0).Wait(job, Soon()));
  EXPECT_EQ(TextOf(job), "barrier: planted");
  lane(1).Enqueue(BarrierJob());
  EXPECT_EQ(lane(0).Run(BarrierJob())->status(), absl::OkStatus());
}

TEST_F(LaneTest, WhatFinishThrowsIsTheJobsStatus) {
  bool has_ended = false;
  Job fails = BarrierJob([] { throw std::runtime_error("planted\nwith a second line"); });
  fails.ended = [&] { has_ended = true; };
  lane(1).Enqueue(BarrierJob());
  const JobHandle job = lane(0).Run(std::move(fails));
  EXPECT_EQ(TextOf(job), "barrier: its results could not be stored: planted");
  EXPECT_TRUE(has_ended);
  lane(1).Enqueue(BarrierJob());
  EXPECT_EQ(lane(0).Run(BarrierJob())->status(), absl::OkStatus());
}

TEST_F(LaneTest, WhatFinishThrowsOnTheLanesThreadIsTheJobsStatus) {
  Notice done;
  Job fails = BarrierJob([] { throw 7; });
  lane(0).OnDone(lane(0).Enqueue(std::move(fails)), [&](const absl::Status& status) {
    EXPECT_EQ(status, absl::InternalError("barrier: its results could not be stored"));
    done.Set();
  });
  lane(1).Enqueue(BarrierJob());
  EXPECT_TRUE(done.Await());
}

TEST_F(LaneTest, AFinishThatBlocksHoldsUpNoLaterJob) {
  Notice begun, may_end;
  std::vector<int> order;
  Job slow = BarrierJob([&] {
    begun.Set();
    EXPECT_TRUE(may_end.Await());
    order.push_back(1);
  });
  slow.finish_lasts = true;
  int value = 7, received = 0;
  const JobHandle first = lane(0).Enqueue(std::move(slow));
  lane(1).Enqueue(BarrierJob());
  EXPECT_TRUE(begun.Await());
  const JobHandle second = lane(0).Enqueue(BarrierJob([&] { order.push_back(2); }));
  EXPECT_EQ(lane(1).Run(BarrierJob())->status(), absl::OkStatus()) << "the second is launched";
  lane(1).Enqueue(SendJob(&value, 0));
  EXPECT_EQ(lane(0).Run(ReceiveJob(&received, 1))->status(), absl::OkStatus());
  EXPECT_EQ(received, 7);
  EXPECT_FALSE(first->done());
  EXPECT_FALSE(second->done()) << "collectives end in the order of their calls";
  may_end.Set();
  ASSERT_TRUE(lane(0).Wait(second, Soon()));
  EXPECT_TRUE(first->done());
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST_F(LaneTest, WhatALastingFinishThrowsIsTheJobsStatus) {
  Job slow = BarrierJob([] { throw std::runtime_error("planted"); });
  slow.finish_lasts = true;
  lane(1).Enqueue(BarrierJob());
  const JobHandle job = lane(0).Run(std::move(slow));
  EXPECT_EQ(TextOf(job), "barrier: its results could not be stored: planted");
  lane(1).Enqueue(BarrierJob());
  EXPECT_EQ(lane(0).Run(BarrierJob())->status(), absl::OkStatus());
}

TEST_F(LaneTest, MessagesThatNobodyMatchesHoldUpNoCollective) {
  constexpr size_t kMessages = limits::kMaxOperationsInFlight - 32;
  std::vector<int> received(kMessages, -1), sent(kMessages);
  std::iota(sent.begin(), sent.end(), 0);
  std::vector<JobHandle> receives;
  for (int& place : received) receives.push_back(lane(0).Enqueue(ReceiveJob(&place, 1)));
  for (int i = 0; i < 20; ++i) {
    lane(1).Enqueue(BarrierJob());
    EXPECT_EQ(lane(0).Run(BarrierJob())->status(), absl::OkStatus());
  }
  for (int& value : sent) lane(1).Enqueue(SendJob(&value, 0));
  for (const JobHandle& receive : receives) {
    ASSERT_TRUE(lane(0).Wait(receive, Soon()));
    EXPECT_EQ(receive->status(), absl::OkStatus());
  }
  EXPECT_EQ(received, sent);
}

// As a pipeline of stages does, in both directions.
TEST_F(LaneTest, BothRanksMayReceiveMoreThanThereIsRoomForBeforeEitherSends) {
  constexpr size_t kMessages = limits::kMaxOperationsInFlight;
  std::vector<int> received[kRanks], sent(kMessages);
  std::iota(sent.begin(), sent.end(), 0);
  std::vector<JobHandle> jobs[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    received[rank].resize(kMessages, -1);
    for (int& place : received[rank]) {
      jobs[rank].push_back(lane(rank).Enqueue(ReceiveJob(&place, 1 - rank)));
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int& value : sent) jobs[rank].push_back(lane(rank).Enqueue(SendJob(&value, 1 - rank)));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const JobHandle& job : jobs[rank]) {
      ASSERT_TRUE(lane(rank).Wait(job, Soon()));
      EXPECT_EQ(job->status(), absl::OkStatus());
    }
    EXPECT_EQ(received[rank], sent);
  }
}

TEST_F(LaneTest, LendsTheCommunicatorOnceEarlierJobsHaveEnded) {
  const JobHandle earlier = lane(0).Enqueue(BarrierJob());
  lane(1).Enqueue(BarrierJob());
  const auto call = [&](Communicator& communicator) {
    EXPECT_EQ(communicator.rank(), Rank(0));
    EXPECT_TRUE(earlier->done());
    return absl::InternalError("planted");
  };
  EXPECT_EQ(lane(0).Borrow(absl::Seconds(60), call), absl::InternalError("planted"));
}

TEST_F(LaneTest, OneAtATimeHasTheCommunicator) {
  Notice begun, may_end;
  std::thread first([&] {
    const auto call = [&](Communicator&) {
      begun.Set();
      EXPECT_TRUE(may_end.Await());
      return absl::OkStatus();
    };
    EXPECT_EQ(lane(0).Borrow(absl::Seconds(60), call), absl::OkStatus());
  });
  EXPECT_TRUE(begun.Await());
  const JobHandle job = lane(0).Enqueue(BarrierJob());
  lane(1).Enqueue(BarrierJob());
  const absl::Status status = lane(0).Borrow(absl::ZeroDuration(), [](Communicator&) {
    ADD_FAILURE() << "two have it";
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::DeadlineExceededError(
                        "rank 0: another call has kept communicator 3; calls of one group run one "
                        "after the other"));
  EXPECT_FALSE(job->done());
  may_end.Set();
  EXPECT_TRUE(lane(0).Wait(job, Soon()));
  first.join();
}

TEST_F(LaneTest, AStoppedLaneIsNotLent) {
  lane(0).Stop();
  EXPECT_EQ(lane(0).Borrow(absl::Seconds(60), [](Communicator&) { return absl::OkStatus(); }),
            absl::FailedPreconditionError("the communicator is shut down"));
}

TEST_F(LaneTest, AReceiveFromAnyRankLetsOthersGoBy) {
  int from_any = 0, quick = 0, value = 7;
  const JobHandle early = lane(0).Enqueue(ReceiveFromAnyJob(&from_any, /*tag=*/1));
  lane(1).Enqueue(SendJob(&value, 0, /*tag=*/2));
  EXPECT_EQ(lane(0).Run(ReceiveJob(&quick, 1, /*tag=*/2))->status(), absl::OkStatus());
  EXPECT_EQ(quick, 7);
  EXPECT_FALSE(early->done());
  lane(1).Enqueue(SendJob(&value, 0, /*tag=*/1));
  ASSERT_TRUE(lane(0).Wait(early, Soon()));
  EXPECT_EQ(from_any, 7);
}

TEST_F(LaneTest, TheOldestReceiveOfATagGetsTheFirstMessage) {
  int sent[] = {10, 20, 30}, received[3] = {};
  const JobHandle jobs[] = {lane(0).Enqueue(ReceiveFromAnyJob(&received[0], /*tag=*/1)),
                            lane(0).Enqueue(ReceiveJob(&received[1], 1, /*tag=*/1)),
                            lane(0).Enqueue(ReceiveFromAnyJob(&received[2], /*tag=*/1))};
  for (int& value : sent) lane(1).Enqueue(SendJob(&value, 0, /*tag=*/1));
  for (const JobHandle& job : jobs) {
    ASSERT_TRUE(lane(0).Wait(job, Soon()));
    EXPECT_EQ(job->status(), absl::OkStatus());
  }
  EXPECT_THAT(received, ElementsAre(10, 20, 30));
}

TEST_F(LaneTest, AReceiveFromAnyRankEndsInTime) {
  int value = 0;
  Job late = ReceiveFromAnyJob(&value, /*tag=*/5);
  late.deadline = absl::Now() + absl::Milliseconds(1);
  const JobHandle job = lane(0).Run(std::move(late));
  EXPECT_EQ(job->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(TextOf(job), HasSubstr("rank 0: no rank has sent a message of tag 5"));
}

TEST_F(LaneTest, AReceiveFromAnyRankEndsWhenNobodyIsLeft) {
  int value = 0;
  const JobHandle job = lane(0).Enqueue(ReceiveFromAnyJob(&value, /*tag=*/5));
  lane(1).Stop();
  lanes_.pop_back();
  ASSERT_TRUE(lane(0).Wait(job, Soon()));
  EXPECT_EQ(job->status(), absl::UnavailableError("recv: all other ranks have left"));
}

// Otherwise ranks that are told different things would launch the rest in different places.
TEST_F(LaneTest, AJobThatLaunchesMoreKeepsItsPlace) {
  std::vector<std::string> order[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    Job longer = BarrierJob([&order, rank] { order[rank].push_back("longer"); });
    longer.more = [&order, rank] {
      std::vector<Job::Launch> more;
      if (order[rank].size() < 2) more = BarrierJob().launches;
      order[rank].push_back("more");
      return more;
    };
    lane(rank).Enqueue(std::move(longer));
  }
  JobHandle later[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    later[rank] = lane(rank).Enqueue(BarrierJob([&order, rank] { order[rank].push_back("next"); }));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(lane(rank).Wait(later[rank], Soon()));
    EXPECT_THAT(order[rank], ElementsAre("more", "more", "more", "longer", "next"));
  }
}

TEST_F(LaneTest, AnEndForWantOfMemoryIsNoWantOfRoom) {
  lane(0).Abort(absl::ResourceExhaustedError("out of memory"));
  for (auto& lane : lanes_) EXPECT_THAT(TextOf(lane->Run(BarrierJob())), HasSubstr("of memory"));
}

TEST_F(LaneTest, StopAbortsWhatIsInFlightAndRefusesTheRest) {
  const JobHandle job = lane(0).Enqueue(BarrierJob());
  lane(0).Stop();
  ASSERT_TRUE(job->done());
  EXPECT_THAT(TextOf(job), HasSubstr("1 operation(s) were in flight"));
  EXPECT_EQ(lane(0).Run(BarrierJob())->status(),
            absl::FailedPreconditionError("barrier: the process group is shut down"));
}

TEST_F(LaneTest, StopWithNothingInFlightLeavesThePeersAlone) {
  const JobHandle peer = lane(1).Enqueue(BarrierJob());
  EXPECT_EQ(lane(0).Run(BarrierJob())->status(), absl::OkStatus());
  lane(0).Stop();
  ASSERT_TRUE(lane(1).Wait(peer, Soon()));
  EXPECT_EQ(peer->status(), absl::OkStatus());
}

// An hour of latency passes in virtual time.
TEST(LaneInVirtualTimeTest, RunsTheSimulationWhileItWaits) {
  SimExecutor executor(1);
  SimFabric fabric(WorldSize(kRanks), {{absl::Hours(1), 0, {}}, 0, &executor.clock()});
  executor.AddEventSource(&fabric);
  auto world = fabric.OpenAll(CommunicatorId(3), Group::World(fabric.world_size()));
  ASSERT_TRUE(world.ok() && Barrier(*(*world)[1]).ok());
  const absl::Time begin = executor.Now();
  const auto lane = Lane::Create(std::move((*world)[0]));
  Job job;
  job.launches.emplace_back([](Communicator& communicator) { return Barrier(communicator); });
  EXPECT_EQ(lane->Run(std::move(job))->status(), absl::OkStatus());
  EXPECT_EQ(executor.Now(), begin + absl::Hours(1));
  lane->Stop();
  executor.RemoveEventSource(&fabric);
}

}  // namespace
}  // namespace pelton::lane
