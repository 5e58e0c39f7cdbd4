#include "core/actor/borrow.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "core/actor/context.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct Increment {};
struct Get {
  Promise<int> reply;
};
struct Fail {};

// Not synchronised on purpose: the thread sanitizer finds out if two turns overlap.
class Register : public Actor {
 public:
  void Add(int amount) { value_ += amount; }
  int value() const { return value_; }
  void Handle(Increment) { ++value_; }
  void Handle(Get get) { get.reply.Set(value_); }
  absl::Status Handle(Fail) { return absl::InternalError("failed on purpose"); }

 private:
  int value_ = 0;
};

// Borrows once the actor is idle.
std::optional<Borrowed<Register>> BorrowSoon(const ActorRef<Register>& ref) {
  for (const absl::Time give_up = Soon(); WaitClock().Now() < give_up;) {
    if (auto borrowed = TryBorrow(ref)) return borrowed;
    // One turn of a simulation; a yield elsewhere.
    if (WaitHook* hook = WaitHook::Current()) {
      int polls = 0;
      hook->WaitUntil([&] { return ++polls > 1; }, give_up);
    } else {
      std::this_thread::yield();
    }
  }
  return std::nullopt;
}

TEST(BorrowTest, GivesExclusiveAccessToAnIdleActor) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Register> ref = Spawn<Register>(executor, {});
    {
      auto borrowed = BorrowSoon(ref);
      ASSERT_TRUE(borrowed.has_value());
      (*borrowed)->Add(5);
      EXPECT_FALSE(TryBorrow(ref).has_value()) << "borrowed twice";
    }
    EXPECT_EQ(ref.Ask(Get{}, Soon()).Await(Soon()).value(), 5);
  });
}

TEST(BorrowTest, MessagesThatCameMeanwhileAreHandledAfterTheRelease) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Register> ref = Spawn<Register>(executor, {});
    Future<int> answer;
    {
      auto borrowed = BorrowSoon(ref);
      ASSERT_TRUE(borrowed.has_value());
      ASSERT_TRUE(ref.Send(Increment{}).ok());
      answer = ref.Ask(Get{}, Soon());
      EXPECT_EQ((*borrowed)->value(), 0);
      EXPECT_FALSE(answer.ready());
    }
    EXPECT_EQ(std::move(answer).Await(Soon()).value(), 1);
  });
}

TEST(BorrowTest, TurnHandlesTheMessagesThatWait) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Register> ref = Spawn<Register>(executor, {});
    auto borrowed = BorrowSoon(ref);
    ASSERT_TRUE(borrowed.has_value());
    ASSERT_TRUE(ref.Send(Increment{}).ok());
    EXPECT_TRUE(borrowed->Turn());
    EXPECT_EQ((*borrowed)->value(), 1);
    EXPECT_EQ(borrowed->last_poll(), PollResult::kNothingToDo);
    ASSERT_TRUE(ref.Send(Fail{}).ok());
    EXPECT_FALSE(borrowed->Turn()) << "it failed: nothing is borrowed any more";
    EXPECT_FALSE(TryBorrow(ref).has_value());
    EXPECT_FALSE(ref.alive());
  });
}

TEST(BorrowTest, BusyScheduledOrDeadActorsAreNotLent) {
  SimExecutor executor(1);
  const ActorRef<Register> ref = Spawn<Register>(executor, {});
  EXPECT_FALSE(TryBorrow(ref).has_value()) << "its first turn is due";
  executor.RunUntilIdle();
  EXPECT_TRUE(TryBorrow(ref).has_value());
  ASSERT_TRUE(ref.Send(Increment{}).ok());
  EXPECT_FALSE(TryBorrow(ref).has_value()) << "a turn is due";
  EXPECT_TRUE(StopAndWait(ref, Soon()).ok());
  EXPECT_FALSE(TryBorrow(ref).has_value()) << "it is dead";
  EXPECT_FALSE(TryBorrow(ActorRef<Register>()).has_value());
}

// Counts its polls, which have something to do as long as it owes some.
class Poller final : public PollingActor {
 public:
  explicit Poller(int* polls) : polls_(*polls) {}
  PollResult Poll() override {
    ++polls_;
    if (owed_ == 0) return PollResult::kNothingToDo;
    return --owed_ == 0 ? PollResult::kMoved : PollResult::kIdle;
  }
  void Owe(int polls) { owed_ = polls; }
  void Look() {}

 private:
  int& polls_;
  int owed_ = 0;
};

// A release that wakes the executor's thread for nothing costs each round of a model a futex.
TEST(BorrowTest, AReleaseWakesTheExecutorUnlessTheLastPollFoundNothing) {
  int polls = 0;  // outlives the actor, which the executor polls to its end
  SimExecutor executor(1);
  const ActorRef<Poller> ref = Spawn<Poller>(executor, {}, &polls);
  executor.RunUntilIdle();
  const auto polls_after = [&](auto use) {
    auto borrowed = TryBorrow(ref);
    EXPECT_TRUE(borrowed.has_value());
    use(*borrowed);
    borrowed.reset();
    polls = 0;
    executor.RunUntilIdle();
    return polls;
  };
  EXPECT_EQ(polls_after([](Borrowed<Poller>& poller) { EXPECT_TRUE(poller.Turn()); }), 0);
  EXPECT_EQ(polls_after([](Borrowed<Poller>& poller) {
              EXPECT_TRUE(poller.Turn());
              poller.Untouched().Look();
            }),
            0);
  EXPECT_EQ(polls_after([](Borrowed<Poller>& poller) { poller.Untouched().Look(); }), 1)
      << "nobody has polled";
  EXPECT_EQ(polls_after([](Borrowed<Poller>& poller) {
              EXPECT_TRUE(poller.Turn());
              poller->Owe(1);
            }),
            2);
  EXPECT_EQ(polls_after([](Borrowed<Poller>& poller) {
              poller->Owe(2);
              EXPECT_TRUE(poller.Turn());
              poller.Untouched().Look();
            }),
            2)
      << "something is in flight";
}

TEST(BorrowTest, BorrowersAndSendersNeverOverlap) {
  for (int thread_count : {1, 2}) {
    PoolExecutor executor(thread_count);
    const ActorRef<Register> ref = Spawn<Register>(executor, {});
    std::atomic<int> borrowed_times{0};
    const auto contend = [&] {
      for (int i = 0; i < 2000; ++i) {
        if (auto borrowed = TryBorrow(ref)) {
          (*borrowed)->Add(1);
          ++borrowed_times;
        }
        while (!ref.Send(Increment{}).ok()) std::this_thread::yield();
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back(contend);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ref.Ask(Get{}, Soon()).Await(Soon()).value(), 6000 + borrowed_times);
  }
}

}  // namespace
}  // namespace pelton
