// Actors that drive non-blocking work, under every executor and borrowed.
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/actor/borrow.h"
#include "core/actor/context.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct Launch {
  int polls_needed;
  Promise<int> reply;
};

// Needs a number of polls per operation, and gets one each time the wire moves.
class Channel : public PollingActor {
 public:
  // `wire` counts what arrived, or is null: every poll moves.
  explicit Channel(std::atomic<int>* wire = nullptr,
                   absl::Duration max_park = absl::Milliseconds(1))
      : wire_(wire), max_park_(max_park) {}

  void Handle(Launch launch) {
    left_ += launch.polls_needed;
    replies_.push_back(std::move(launch.reply));
  }
  PollResult Poll() override {
    ++polls_;
    if (replies_.empty()) return PollResult::kNothingToDo;
    if (wire_ != nullptr && wire_->load() == taken_) return PollResult::kIdle;
    ++taken_;
    if (--left_ <= 0) {
      for (Promise<int>& reply : replies_) reply.Set(polls_);
      replies_.clear();
    }
    return PollResult::kMoved;
  }
  absl::Duration MaxPark() const override { return max_park_; }
  int polls() const { return polls_; }

 private:
  std::atomic<int>* wire_;
  absl::Duration max_park_;
  int taken_ = 0;
  int left_ = 0;
  int polls_ = 0;
  std::vector<Promise<int>> replies_;
};

TEST(PollingTest, PollsUntilTheWorkInFlightIsDone) {
  ForEachExecutor([](Executor& executor) {
    std::vector<ActorRef<Channel>> channels;
    std::vector<Future<int>> answers;
    for (int i = 0; i < 3; ++i) channels.push_back(Spawn<Channel>(executor, {}));
    for (const auto& channel : channels) answers.push_back(channel.Ask(Launch{100, {}}, Soon()));
    for (auto& answer : answers) EXPECT_GE(std::move(answer).Await(Soon()).value(), 100);
  });
}

// A pool thread that takes an actor off the list while another still holds its turn must not lose
// it.
TEST(PollingTest, ManyThreadsLoseNoActorToPoll) {
  PoolExecutor executor({.thread_count = 4});
  std::vector<ActorRef<Channel>> channels;
  for (int i = 0; i < 2; ++i) channels.push_back(Spawn<Channel>(executor, {}));
  for (int round = 0; round < 300; ++round) {
    std::vector<Future<int>> answers;
    for (const auto& channel : channels) answers.push_back(channel.Ask(Launch{100, {}}, Soon()));
    for (auto& answer : answers) ASSERT_TRUE(std::move(answer).Await(Soon()).ok()) << round;
  }
}

TEST(PollingTest, AnActorWithNothingInFlightIsLeftAlone) {
  ThreadExecutor executor;
  const auto channel = Spawn<Channel>(executor, {});
  ASSERT_TRUE(channel.Ask(Launch{1, {}}, Soon()).Await(Soon()).ok());
  const int polls = channel.Ask(Launch{1, {}}, Soon()).Await(Soon()).value();
  EXPECT_LE(polls, 8);
}

TEST(PollingTest, AKickWakesAParkedThread) {
  std::atomic<int> wire{0};
  ThreadExecutor executor;
  const auto channel = Spawn<Channel>(executor, {}, &wire, absl::Seconds(60));
  auto answer = channel.Ask(Launch{3, {}}, Soon());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(answer.WaitUntil(absl::Now() + absl::Milliseconds(3)));
    ++wire;
    executor.waker().Kick();
  }
  EXPECT_TRUE(std::move(answer).Await(Soon()).ok());
}

TEST(PollingTest, AKickThroughASharedWordWakesAParkedThread) {
  std::atomic<uint32_t> word{0};
  std::atomic<int> wire{0};
  ThreadExecutor executor({.waker_word = &word});
  const auto channel = Spawn<Channel>(executor, {}, &wire, absl::Seconds(60));
  auto answer = channel.Ask(Launch{1, {}}, Soon());
  EXPECT_FALSE(answer.WaitUntil(absl::Now() + absl::Milliseconds(3)));
  ++wire;
  Waker(&word).Kick();  // as a peer process would
  EXPECT_TRUE(std::move(answer).Await(Soon()).ok());
}

TEST(PollingTest, WithoutAKickTheLongestParkBoundsTheDelay) {
  for (const bool pool : {false, true}) {
    std::atomic<int> wire{0};
    std::unique_ptr<Executor> executor;
    if (pool) {
      executor = std::make_unique<PoolExecutor>(2);
    } else {
      executor = std::make_unique<ThreadExecutor>();
    }
    const auto channel = Spawn<Channel>(*executor, {}, &wire);
    auto answer = channel.Ask(Launch{1, {}}, Soon());
    EXPECT_FALSE(answer.WaitUntil(absl::Now() + absl::Milliseconds(3)));
    ++wire;
    EXPECT_TRUE(std::move(answer).Await(Soon()).ok());
  }
}

TEST(PollingTest, ThreadParksInTheFunctionGiven) {
  std::atomic<int> wire{0};
  std::atomic<int> parks{0};
  ThreadExecutor executor({.park = [&](Waker& waker, absl::Duration at_most) {
    if (++parks == 3) ++wire;  // the event that this function waits for
    waker.Park(at_most);
  }});
  const auto channel = Spawn<Channel>(executor, {}, &wire, absl::Milliseconds(1));
  EXPECT_TRUE(channel.Ask(Launch{1, {}}, Soon()).Await(Soon()).ok());
  EXPECT_GE(parks, 3);
}

TEST(PollingTest, StopWaitsForTheWorkInFlight) {
  ForEachExecutor([](Executor& executor) {
    const auto channel = Spawn<Channel>(executor, {});
    auto answer = channel.Ask(Launch{50, {}}, Soon());
    EXPECT_TRUE(StopAndWait(channel, Soon()).ok());
    EXPECT_TRUE(std::move(answer).Await(Soon()).ok());
  });
}

// The trainer's way: launch on a borrowed channel and drive it to the end on the own thread.
TEST(PollingTest, ABorrowerDrivesTheChannelItself) {
  ForEachExecutor([](Executor& executor) {
    const auto channel = Spawn<Channel>(executor, {});
    ASSERT_TRUE(channel.Ask(Launch{1, {}}, Soon()).Await(Soon()).ok());
    std::optional<Borrowed<Channel>> borrowed;
    while (!(borrowed = TryBorrow(channel))) {
      int looks = 0;
      if (WaitHook* hook = WaitHook::Current())
        hook->WaitUntil([&] { return ++looks > 1; }, Soon());
    }
    auto [promise, answer] = MakePromise<int>();
    (*borrowed)->Handle(Launch{20, std::move(promise)});
    while (!answer.ready()) ASSERT_TRUE(borrowed->Turn());
    EXPECT_TRUE(std::move(answer).Take().ok());
  });
}

TEST(PollingTest, AnIdleChannelDoesAllItHasOnTheBorrowersThread) {
  SimExecutor executor(1);
  const auto channel_ref = Spawn<Channel>(executor, {});
  executor.RunFor(absl::Seconds(1));
  auto [promise, answer] = MakePromise<int>();
  Launch operation{20, std::move(promise)};
  if (auto channel = TryBorrow(channel_ref)) {  // nobody runs it: now this thread does
    (*channel)->Handle(std::move(operation));   // a plain call, ordered with all of its turns
    while (channel->Turn() && channel->last_poll() != PollResult::kNothingToDo) {
    }
  }  // messages that came meanwhile: its executor goes on
  EXPECT_TRUE(answer.ready());
}

TEST(PollingTest, AwaitDrivingGetsTheResultWhoeverDoesTheWork) {
  ForEachExecutor([](Executor& executor) {
    const auto channel = Spawn<Channel>(executor, {});
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(AwaitDriving(channel.Ask(Launch{5, {}}, Soon()), channel, Soon()).ok());
    }
    EXPECT_TRUE(StopAndWait(channel, Soon()).ok());
    EXPECT_FALSE(AwaitDriving(channel.Ask(Launch{5, {}}, Soon()), channel, Soon()).ok());
  });
}

TEST(PollingTest, AwaitDrivingLeavesAChannelThatDoesNotMoveToItsExecutor) {
  std::atomic<int> wire{0};
  ThreadExecutor executor;
  const auto channel = Spawn<Channel>(executor, {}, &wire, absl::Seconds(60));
  auto answer = channel.Ask(Launch{1, {}}, Soon());
  std::thread peer([&] {
    while (!TryBorrow(channel).has_value()) std::this_thread::yield();
    ++wire;
    executor.waker().Kick();
  });
  EXPECT_TRUE(AwaitDriving(std::move(answer), channel, Soon()).ok());
  peer.join();
}

TEST(PollingTest, WorkLeftByABorrowerIsPolledByTheExecutor) {
  ForEachExecutor([](Executor& executor) {
    const auto channel = Spawn<Channel>(executor, {});
    ASSERT_TRUE(channel.Ask(Launch{1, {}}, Soon()).Await(Soon()).ok());
    auto [promise, answer] = MakePromise<int>();
    for (bool launched = false; !launched;) {
      if (auto borrowed = TryBorrow(channel)) {
        (*borrowed)->Handle(Launch{20, std::move(promise)});
        launched = true;
      } else if (WaitHook* hook = WaitHook::Current()) {
        int looks = 0;
        hook->WaitUntil([&] { return ++looks > 1; }, Soon());
      }
    }
    EXPECT_TRUE(std::move(answer).Await(Soon()).ok());
  });
}

TEST(PollingTest, AnActorWithWorkInFlightIsLentBetweenPolls) {
  std::atomic<int> wire{0};
  ThreadExecutor executor;
  const auto channel = Spawn<Channel>(executor, {}, &wire, absl::Seconds(60));
  auto answer = channel.Ask(Launch{1, {}}, Soon());
  // Once its thread has parked, the trainer takes over.
  std::optional<Borrowed<Channel>> borrowed;
  for (const absl::Time give_up = Soon(); !borrowed && absl::Now() < give_up;) {
    borrowed = TryBorrow(channel);
  }
  ASSERT_TRUE(borrowed.has_value());
  ++wire;
  while (!answer.ready()) ASSERT_TRUE(borrowed->Turn());
}

// A wire in virtual time.
class SimWire : public EventSource {
 public:
  SimWire(SimExecutor& executor, std::atomic<int>* arrived)
      : executor_(executor), arrived_(arrived) {
    executor_.AddEventSource(this);
  }
  ~SimWire() override { executor_.RemoveEventSource(this); }
  void ArriveAt(absl::Time when) { pending_.push_back(when); }
  absl::Time NextEventTime() override {
    return pending_.empty() ? absl::InfiniteFuture() : pending_.front();
  }
  void RunDue(absl::Time now) override {
    while (NextEventTime() <= now) {
      pending_.erase(pending_.begin());
      ++*arrived_;
    }
  }

 private:
  SimExecutor& executor_;
  std::atomic<int>* arrived_;
  std::vector<absl::Time> pending_;
};

TEST(PollingTest, VirtualTimeJumpsToTheNextEventOnlyWhenNoPollMoves) {
  ForEachSeed(100, [](uint64_t seed) {
    SimExecutor executor(seed);
    std::atomic<int> arrived{0};
    SimWire wire(executor, &arrived);
    const absl::Time begin = executor.Now();
    const auto waiting = Spawn<Channel>(executor, {}, &arrived);
    const auto working = Spawn<Channel>(executor, {});
    auto first = waiting.Ask(Launch{2, {}}, absl::InfiniteFuture());
    auto second = working.Ask(Launch{100, {}}, absl::InfiniteFuture());
    wire.ArriveAt(begin + absl::Seconds(1));
    wire.ArriveAt(begin + absl::Seconds(2));
    EXPECT_TRUE(executor.RunUntil([&] { return second.ready(); }, absl::InfiniteFuture()));
    EXPECT_EQ(executor.Now(), begin);
    executor.RunUntilIdle();
    EXPECT_TRUE(first.ready());
    EXPECT_EQ(executor.Now(), begin + absl::Seconds(2));
  });
}

TEST(PollingTest, ASimulationWhosePollsCannotMoveIsIdle) {
  std::atomic<int> arrived{0};
  SimExecutor executor(1);
  const auto channel = Spawn<Channel>(executor, {}, &arrived);
  auto answer = channel.Ask(Launch{1, {}}, absl::InfiniteFuture());
  executor.RunUntilIdle();
  EXPECT_FALSE(answer.ready());
  ++arrived;
  EXPECT_FALSE(std::move(answer).Await(executor.Now() + absl::Seconds(1)).ok())
      << "nothing told the simulation that the wire moved";
}

}  // namespace
}  // namespace pelton
