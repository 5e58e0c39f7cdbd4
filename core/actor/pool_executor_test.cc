// What only real threads show.
#include "core/actor/pool_executor.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "core/actor/context.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

struct Ball {
  int left;
};
struct Meet {
  ActorRef<class Player> other;
  Promise<void> done;
};
class Player : public Actor {
 public:
  void Handle(Meet meet) {
    other_ = std::move(meet.other);
    done_ = std::move(meet.done);
  }
  absl::Status Handle(Ball ball) {
    if (ball.left > 0) return other_.Send(Ball{ball.left - 1});
    if (done_.valid()) done_.Set(absl::OkStatus());
    return absl::OkStatus();
  }

 private:
  ActorRef<Player> other_;
  Promise<void> done_;
};

void Play(Executor& first, Executor& second, int turns) {
  auto [promise, done] = MakePromise<void>();
  const auto ping = Spawn<Player>(first, {});
  const auto pong = Spawn<Player>(second, {});
  ASSERT_TRUE(ping.Send(Meet{pong, std::move(promise)}).ok());
  ASSERT_TRUE(pong.Send(Meet{ping, Promise<void>()}).ok());
  ASSERT_TRUE(ping.Send(Ball{turns}).ok());
  EXPECT_TRUE(std::move(done).Await(Soon()).ok());
}

TEST(PoolExecutorTest, NoWakeUpIsLostBetweenExecutors) {
  PoolExecutor one(1);
  PoolExecutor three(3);
  ThreadExecutor thread;
  Play(one, one, 4'000);
  Play(one, three, 4'000);
  Play(three, thread, 4'000);
  Play(thread, one, 4'000);
}

struct Count {
  int amount;
};
struct Total {
  Promise<int64_t> reply;
};
class Counter : public Actor {
 public:
  void Handle(Count count) { total_ += count.amount; }
  void Handle(Total total) { total.reply.Set(total_); }

 private:
  int64_t total_ = 0;
};

TEST(PoolExecutorTest, ManySendersToManyActorsLoseNothing) {
  PoolExecutor pool(3);
  constexpr int kActors = 8;
  constexpr int kEach = 4'000;
  std::vector<ActorRef<Counter>> counters;
  for (int i = 0; i < kActors; ++i) {
    counters.push_back(Spawn<Counter>(pool, {.mailbox_capacity = 64}));
  }
  std::vector<std::thread> senders;
  for (int sender = 0; sender < 3; ++sender) {
    senders.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        const ActorRef<Counter>& counter = counters[static_cast<size_t>(i % kActors)];
        for (absl::Status sent; !(sent = counter.Send(Count{1})).ok();) {
          ASSERT_EQ(sent.code(), absl::StatusCode::kResourceExhausted);
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  int64_t total = 0;
  for (const auto& counter : counters) {
    absl::StatusOr<Permits<Counter>> permit;
    while (!(permit = counter.Reserve(1)).ok()) std::this_thread::yield();
    auto [promise, answer] = MakePromise<int64_t>();
    ASSERT_TRUE(permit->Send(Total{std::move(promise)}).ok());
    total += std::move(answer).Await(Soon()).value();
  }
  EXPECT_EQ(total, 3 * kEach);
}

struct Hold {
  Promise<void> reply;
};
class Stuck : public Actor {
 public:
  explicit Stuck(std::atomic<bool>* release) : release_(release) {}
  void Handle(Hold hold) {
    hold.reply.Set(absl::OkStatus());
    while (!release_->load()) std::this_thread::yield();
  }

 private:
  std::atomic<bool>* release_;
};

TEST(PoolExecutorTest, ShutdownNamesAnActorThatDoesNotEnd) {
  std::atomic<bool> release{false};
  PoolExecutor pool(1);
  const auto stuck = Spawn<Stuck>(pool, {}, &release);
  EXPECT_TRUE(stuck.Ask(Hold{}, Soon()).Await(Soon()).ok());
  const absl::Status status = pool.Shutdown(absl::Now() + absl::Milliseconds(10));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(status.message(), "Stuck")) << status;
  release = true;
}

TEST(PoolExecutorTest, ALongChainDoesNotStarveTheQueue) {
  PoolExecutor pool(1);
  // Would outlast the test if nobody else got a turn.
  auto [promise, done] = MakePromise<void>();
  const auto ping = Spawn<Player>(pool, {});
  const auto pong = Spawn<Player>(pool, {});
  ASSERT_TRUE(ping.Send(Meet{pong, std::move(promise)}).ok());
  ASSERT_TRUE(pong.Send(Meet{ping, Promise<void>()}).ok());
  ASSERT_TRUE(ping.Send(Ball{2'000'000'000}).ok());
  const auto counter = Spawn<Counter>(pool, {});
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(counter.Ask(Total{}, Soon()).Await(Soon()).value(), 0);
  }
  EXPECT_FALSE(done.ready());
  Future<Down> down = WhenDown(pong);
  EXPECT_TRUE(StopAndWait(ping, Soon()).ok());
  // What pong sends is refused from then on.
  EXPECT_EQ(std::move(down).Await(Soon())->why.code(), absl::StatusCode::kNotFound);
}

struct Assemble {
  int crowd;
  Promise<bool> reply;
};
// Answers whether `crowd` of them were in a turn at the same time.
class Attendee : public Actor {
 public:
  explicit Attendee(std::atomic<int>* present) : present_(*present) {}
  void Handle(Assemble assemble) {
    ++present_;
    // Before a pool thread that nobody wakes ends its longest park, of 10 s, by itself.
    const absl::Time give_up = absl::Now() + absl::Seconds(9);
    while (present_ < assemble.crowd && absl::Now() < give_up) std::this_thread::yield();
    assemble.reply.Set(present_ >= assemble.crowd);
  }

 private:
  std::atomic<int>& present_;
};

TEST(PoolExecutorTest, ABurstFromOutsideRunsOnAllWorkers) {
  constexpr int kWorkers = 4;
  PoolExecutor pool(kWorkers);
  std::atomic<int> present{0};
  std::vector<ActorRef<Attendee>> attendees;
  for (int i = 0; i < kWorkers; ++i) attendees.push_back(Spawn<Attendee>(pool, {}, &present));
  for (int round = 0; round < 20; ++round) {
    present = 0;
    while (pool.parked_count() < kWorkers) std::this_thread::yield();
    std::vector<Future<bool>> answers;
    for (const auto& each : attendees) answers.push_back(each.Ask(Assemble{kWorkers, {}}, Soon()));
    for (auto& answer : answers) ASSERT_TRUE(std::move(answer).Await(Soon()).value()) << round;
  }
}

TEST(PoolExecutorTest, AnActorSpawnedAfterShutdownEndsAtOnce) {
  PoolExecutor pool(2);
  EXPECT_TRUE(pool.Shutdown(Soon()).ok());
  const auto late = Spawn<Counter>(pool, {});
  EXPECT_TRUE(WhenDown(late).WaitUntil(Soon()));
  EXPECT_FALSE(late.alive());
}

// Threads: as Actor. Owns: nothing.
class Parent : public Actor {
 public:
  explicit Parent(PoolExecutor* pool) : pool_(*pool) {}
  // Waits in its turn for an actor that it has just spawned on its own pool.
  void Handle(Assemble assemble) {
    std::atomic<int> nobody{0};
    const auto child = Spawn<Attendee>(pool_, {}, &nobody);
    assemble.reply.Set(child.Ask(Assemble{1, {}}, Soon()).Await(Soon()).value());
  }

 private:
  PoolExecutor& pool_;
};

TEST(PoolExecutorTest, TurnsThatMayBlockHaveAThreadEach) {
  PoolExecutor pool({.turns_may_block = true});
  EXPECT_EQ(pool.thread_count(), 1u);
  constexpr int kActors = 5;
  std::atomic<int> present{0};
  std::vector<ActorRef<Attendee>> attendees;
  for (int i = 0; i < kActors; ++i) attendees.push_back(Spawn<Attendee>(pool, {}, &present));
  EXPECT_EQ(pool.thread_count(), 5u);
  std::vector<Future<bool>> answers;
  for (const auto& each : attendees) answers.push_back(each.Ask(Assemble{kActors, {}}, Soon()));
  for (auto& answer : answers) EXPECT_TRUE(std::move(answer).Await(Soon()).value());
  for (const auto& each : attendees) EXPECT_TRUE(StopAndWait(each, Soon()).ok());
  Spawn<Counter>(pool, {});
  EXPECT_EQ(pool.thread_count(), 5u) << "threads of actors that have ended serve others";
}

// In a pool of short turns the child would wait for the end of its parent's turn.
TEST(PoolExecutorTest, ATurnThatMayBlockMayWaitForAnActorOfItsOwnPool) {
  PoolExecutor pool({.turns_may_block = true});
  const auto parent = Spawn<Parent>(pool, {}, &pool);
  EXPECT_TRUE(parent.Ask(Assemble{1, {}}, Soon()).Await(Soon()).value());
}

TEST(PoolExecutorTest, APoolWithATurnThatDoesNotEndStays) {
  static std::atomic<bool>* const release = new std::atomic<bool>(false);  // outlives the test
  auto pool = std::make_unique<PoolExecutor>(PoolExecutor::Options{.turns_may_block = true});
  const auto stuck = Spawn<Stuck>(*pool, {.name = "stuck"}, release);
  EXPECT_TRUE(stuck.Ask(Hold{}, Soon()).Await(Soon()).ok());
  const absl::Status left = PoolExecutor::EndOrLeave(std::move(pool), absl::Now());
  EXPECT_EQ(left.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(stuck.alive());
  // What it works on is still there when it goes on.
  Future<Down> down = WhenDown(stuck);
  release->store(true);
  EXPECT_TRUE(down.WaitUntil(Soon()));
}

struct EndPool {
  Promise<absl::StatusCode> reply;
};
// Threads: as Actor. Owns: the pool that it lives on.
class Ender : public Actor {
 public:
  explicit Ender(std::unique_ptr<PoolExecutor>* pool) : pool_(*pool) {}
  void Handle(EndPool end) {
    end.reply.Set(PoolExecutor::EndOrLeave(std::move(pool_), Soon()).code());
  }

 private:
  std::unique_ptr<PoolExecutor>& pool_;
};

TEST(PoolExecutorTest, ATurnThatEndsItsOwnPoolDoesNotWaitForItself) {
  auto pool = std::make_unique<PoolExecutor>(PoolExecutor::Options{.turns_may_block = true});
  const auto ender = Spawn<Ender>(*pool, {}, &pool);
  EXPECT_EQ(ender.Ask(EndPool{}, Soon()).Await(Soon()).value(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(PoolExecutorTest, APoolThatIsIdleEndsWithItsThreads) {
  auto pool = std::make_unique<PoolExecutor>(PoolExecutor::Options{.turns_may_block = true});
  const auto counter = Spawn<Counter>(*pool, {});
  EXPECT_TRUE(PoolExecutor::EndOrLeave(std::move(pool), Soon()).ok());
  EXPECT_FALSE(counter.alive());
}

}  // namespace
}  // namespace pelton
