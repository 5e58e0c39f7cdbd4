// What actors do, the same under every executor.
#include "core/actor/actor.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/actor/context.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct Add {
  int amount;
};
struct GetTotal {
  Promise<int> reply;
};
struct FailNow {
  std::string why;
};
struct ThrowNow {};

class Counter : public Actor {
 public:
  void Handle(Add add) { total_ += add.amount; }
  void Handle(GetTotal get) { get.reply.Set(total_); }
  absl::Status Handle(FailNow fail) { return absl::DataLossError(fail.why); }
  void Handle(ThrowNow) { throw std::runtime_error("thrown on purpose"); }

 private:
  int total_ = 0;
};

TEST(ActorTest, HandlesMessagesInTheOrderSent) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Counter> counter = Spawn<Counter>(executor, {});
    for (int i = 1; i <= 100; ++i) ASSERT_TRUE(counter.Send(Add{i}).ok());
    EXPECT_EQ(counter.Ask(GetTotal{}, Soon()).Await(Soon()).value(), 5050);
  });
}

TEST(ActorTest, SendToADeadActorIsNotFound) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Counter> counter = Spawn<Counter>(executor, {});
    EXPECT_TRUE(StopAndWait(counter, Soon()).ok());
    EXPECT_EQ(counter.Send(Add{1}).code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE(counter.alive());
    EXPECT_EQ(counter.Ask(GetTotal{}, Soon()).Await(Soon()).status().code(),
              absl::StatusCode::kNotFound);
  });
  EXPECT_EQ(ActorRef<Counter>().Send(Add{1}).code(), absl::StatusCode::kNotFound);
}

TEST(ActorTest, RefOutlivesItsExecutor) {
  ActorRef<Counter> counter;
  {
    PoolExecutor executor(1);
    counter = Spawn<Counter>(executor, {});
  }
  EXPECT_EQ(counter.Send(Add{1}).code(), absl::StatusCode::kNotFound);
}

TEST(ActorTest, FullMailboxIsResourceExhaustedAndPermitsAreNot) {
  SimExecutor executor(1);
  const ActorRef<Counter> counter = Spawn<Counter>(executor, {.mailbox_capacity = 4});
  absl::StatusOr<Permits<Counter>> permits = counter.Reserve(2);
  ASSERT_TRUE(permits.ok());
  EXPECT_TRUE(counter.Send(Add{1}).ok());
  EXPECT_TRUE(counter.Send(Add{1}).ok());
  const absl::Status full = counter.Send(Add{1});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(full.message()).find("Counter"), std::string::npos) << full;
  EXPECT_EQ(counter.Reserve(1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(permits->Send(Add{10}).ok());
  EXPECT_TRUE(permits->Send(Add{10}).ok());
  EXPECT_EQ(permits->Send(Add{10}).code(), absl::StatusCode::kFailedPrecondition);
  executor.RunUntilIdle();
  EXPECT_EQ(counter.Ask(GetTotal{}, Soon()).Await(Soon()).value(), 22);
}

TEST(ActorTest, UnusedPermitsReturnTheirRoom) {
  SimExecutor executor(1);
  const ActorRef<Counter> counter = Spawn<Counter>(executor, {.mailbox_capacity = 4});
  { const auto permits = counter.Reserve(4); }
  EXPECT_TRUE(counter.Reserve(4).ok());
}

TEST(ActorTest, StopWaitsForReservedRoomAndHandlesWhatItCarries) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Counter> counter = Spawn<Counter>(executor, {});
    auto permits = counter.Reserve(2);
    ASSERT_TRUE(permits.ok());
    Future<Down> down = WhenDown(counter);
    counter.Stop(Soon());
    auto [promise, answer] = MakePromise<int>();
    EXPECT_TRUE(permits->Send(Add{7}).ok());
    EXPECT_TRUE(permits->Send(GetTotal{std::move(promise)}).ok());
    EXPECT_EQ(std::move(answer).Await(Soon()).value(), 7);
    EXPECT_TRUE(std::move(down).Await(Soon())->why.ok());
  });
}

TEST(ActorTest, StopEndsByForceAtTheDeadline) {
  SimExecutor executor(1);
  const ActorRef<Counter> counter = Spawn<Counter>(executor, {});
  const auto permits = counter.Reserve(1);  // never used nor returned: the stop waits for it
  Future<Down> down = WhenDown(counter);
  counter.Stop(executor.Now() + absl::Seconds(3));
  executor.RunFor(absl::Seconds(2));
  EXPECT_FALSE(down.ready());
  EXPECT_EQ(counter.Send(Add{1}).code(), absl::StatusCode::kNotFound);
  executor.RunFor(absl::Seconds(2));
  ASSERT_TRUE(down.ready());
  EXPECT_EQ(std::move(down).Take()->why.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ActorTest, AnEarlierDeadlineReplacesThatOfAStopUnderWay) {
  SimExecutor executor(1);
  const ActorRef<Counter> counter = Spawn<Counter>(executor, {});
  const auto permits = counter.Reserve(1);
  Future<Down> down = WhenDown(counter);
  counter.Stop(executor.Now() + absl::Hours(1));
  executor.RunFor(absl::Seconds(1));
  counter.Stop(executor.Now() + absl::Hours(2));
  counter.Stop(executor.Now() + absl::Seconds(1));
  executor.RunFor(absl::Seconds(2));
  EXPECT_TRUE(down.ready());
}

TEST(ActorTest, FailureEndsTheActorWithItsReason) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Counter> counter = Spawn<Counter>(executor, {.name = "the counter"});
    Future<Down> down = WhenDown(counter);
    ASSERT_TRUE(counter.Send(FailNow{"lost it"}).ok());
    const absl::StatusOr<Down> end = std::move(down).Await(Soon());
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(end->why, absl::DataLossError("lost it"));
    EXPECT_EQ(end->name, "the counter");
    EXPECT_EQ(end->who, counter.id());
  });
}

TEST(ActorTest, ExceptionEndsTheActorAtTheTurnBoundary) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Counter> counter = Spawn<Counter>(executor, {});
    Future<Down> down = WhenDown(counter);
    ASSERT_TRUE(counter.Send(ThrowNow{}).ok());
    Future<int> unanswered = counter.Ask(GetTotal{}, Soon());
    const absl::Status why = std::move(down).Await(Soon())->why;
    EXPECT_EQ(why.code(), absl::StatusCode::kInternal);
    EXPECT_NE(why.message().find("thrown on purpose"), absl::string_view::npos);
    EXPECT_FALSE(std::move(unanswered).Await(Soon()).ok());
  });
}

TEST(ActorTest, WatchingADeadActorTellsAtOnce) {
  SimExecutor executor(1);
  const ActorRef<Counter> counter = Spawn<Counter>(executor, {});
  EXPECT_TRUE(StopAndWait(counter, Soon()).ok());
  Future<Down> down = WhenDown(counter);
  ASSERT_TRUE(down.ready());
  EXPECT_EQ(std::move(down).Take()->why.code(), absl::StatusCode::kNotFound);
}

struct Tick {
  int number;
};
struct Arm {
  absl::Duration delay;
  int number;
};
struct CancelLast {};

class Alarm : public Actor {
 public:
  explicit Alarm(std::vector<int>* rung) : rung_(rung) {}
  void Handle(Arm arm) { timer_ = context().SendAfter(*this, arm.delay, Tick{arm.number}); }
  void Handle(Tick tick) { rung_->push_back(tick.number); }
  void Handle(CancelLast) { EXPECT_TRUE(timer_.Cancel()); }

 private:
  std::vector<int>* rung_;
  Timer timer_;
};

TEST(ActorTest, TimersFireInOrderOfTheirTimesUnlessCancelled) {
  ForEachSeed(50, [](uint64_t seed) {
    SimExecutor executor(seed);
    std::vector<int> rung;
    const ActorRef<Alarm> alarm = Spawn<Alarm>(executor, {}, &rung);
    for (int number : {3, 1, 2, 4}) {
      ASSERT_TRUE(alarm.Send(Arm{absl::Seconds(number), number}).ok());
    }
    ASSERT_TRUE(alarm.Send(CancelLast{}).ok());
    executor.RunFor(absl::Milliseconds(1500));
    EXPECT_EQ(rung, (std::vector<int>{1}));
    executor.RunUntilIdle();
    EXPECT_EQ(rung, (std::vector<int>{1, 2, 3}));
  });
}

struct Wake {
  Promise<void> reply;
};

class Sleeper : public Actor {
 public:
  void Handle(Wake wake) {
    reply_ = std::move(wake.reply);
    context().SendAfter(context().RefTo(*this), absl::Milliseconds(5), Tick{1});
  }
  void Handle(Tick) { reply_.Set(absl::OkStatus()); }

 private:
  Promise<void> reply_;
};

TEST(ActorTest, TimersWakeParkedThreads) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Sleeper> sleeper = Spawn<Sleeper>(executor, {});
    const absl::Time begin = executor.clock().Now();
    EXPECT_TRUE(sleeper.Ask(Wake{}, Soon()).Await(Soon()).ok());
    EXPECT_GE(executor.clock().Now() - begin, absl::Milliseconds(5));
  });
}

struct Relay {
  ActorRef<Counter> counter;
  absl::Time deadline;
  Promise<int> reply;
};

class Asker : public Actor {
 public:
  void Handle(Relay relay) {
    context().Then(relay.counter.Ask(GetTotal{}, relay.deadline),
                   [reply = std::move(relay.reply)](absl::StatusOr<int> total) mutable {
                     reply.Set(std::move(total));
                   });
  }
};

TEST(ActorTest, AnswersArriveInATurnOfTheAsker) {
  ForEachExecutor([](Executor& executor) {
    const ActorRef<Counter> counter = Spawn<Counter>(executor, {});
    const ActorRef<Asker> asker = Spawn<Asker>(executor, {});
    ASSERT_TRUE(counter.Send(Add{5}).ok());
    auto future = asker.Ask(Relay{counter, Soon(), {}}, Soon());
    EXPECT_EQ(std::move(future).Await(Soon()).value(), 5);
  });
}

class Mute : public Counter {
 public:
  explicit Mute(std::vector<Promise<int>>* kept) : kept_(kept) {}
  using Counter::Handle;
  void Handle(GetTotal get) { kept_->push_back(std::move(get.reply)); }

 private:
  std::vector<Promise<int>>* kept_;
};

struct RelayMute {
  ActorRef<Mute> mute;
  Promise<int> reply;
};
class MuteAsker : public Actor {
 public:
  void Handle(RelayMute relay) {
    context().Then(relay.mute.Ask(GetTotal{}, context().Now() + absl::Seconds(2)),
                   [reply = std::move(relay.reply)](absl::StatusOr<int> total) mutable {
                     reply.Set(std::move(total));
                   });
  }
};

TEST(ActorTest, UnansweredQuestionExpiresInATurnOfTheAskerAndCancels) {
  SimExecutor executor(1);
  std::vector<Promise<int>> kept;
  const ActorRef<Mute> mute = Spawn<Mute>(executor, {}, &kept);
  const ActorRef<MuteAsker> asker = Spawn<MuteAsker>(executor, {});
  auto answer = asker.Ask(RelayMute{mute, {}}, absl::InfiniteFuture());
  executor.RunFor(absl::Seconds(1));
  EXPECT_FALSE(answer.ready());
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_FALSE(kept[0].cancelled());
  executor.RunFor(absl::Seconds(2));
  EXPECT_TRUE(kept[0].cancelled());
  kept[0].Set(1);  // too late: dropped
  EXPECT_EQ(std::move(answer).Await(Soon()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace pelton
