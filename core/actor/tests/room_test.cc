// Waiting for room, the order of an end among messages, and stops that drain or drop.
#include <atomic>
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

struct Item {
  int value;
};

// Keeps the values it is sent.
class Sink : public Actor {
 public:
  explicit Sink(std::vector<int>* got) : got_(*got) {}
  void Handle(Item item) { got_.push_back(item.value); }

 private:
  std::vector<int>& got_;
};

TEST(WhenRoomTest, ACallerWaitsUntilThereIsRoomInTheOrderOfTheCalls) {
  ForEachSeed(50, [](uint64_t seed) {
    SimExecutor executor(seed);
    std::vector<int> got;
    const auto sink = Spawn<Sink>(executor, {.mailbox_capacity = 2}, &got);
    executor.RunUntilIdle();
    ASSERT_TRUE(sink.Send(Item{0}).ok());
    ASSERT_TRUE(sink.Send(Item{1}).ok());
    auto first = sink.WhenRoom(2, Soon());
    auto second = sink.WhenRoom(1, Soon());
    EXPECT_FALSE(first.ready());
    auto two = std::move(first).Await(Soon());
    ASSERT_TRUE(two.ok());
    executor.RunFor(absl::Seconds(1));
    EXPECT_FALSE(second.ready()) << "all room is reserved";
    EXPECT_TRUE(two->Send(Item{2}).ok());
    EXPECT_TRUE(two->Send(Item{3}).ok());
    auto one = std::move(second).Await(Soon());
    ASSERT_TRUE(one.ok());
    EXPECT_TRUE(one->Send(Item{4}).ok());
    executor.RunFor(absl::Seconds(1));
    EXPECT_EQ(got, (std::vector<int>{0, 1, 2, 3, 4}));
  });
}

TEST(WhenRoomTest, RoomThatIsGivenBackUnusedServesWhoWaits) {
  ForEachExecutor([](Executor& executor) {
    std::vector<int> got;
    const auto sink = Spawn<Sink>(executor, {.mailbox_capacity = 1}, &got);
    auto permit = std::make_unique<Permits<Sink>>(sink.Reserve(1).value());
    auto waits = sink.WhenRoom(1, Soon());
    permit.reset();
    EXPECT_TRUE(std::move(waits).Await(Soon()).ok());
  });
}

TEST(WhenRoomTest, WhoDoesNotWaitAnyMoreIsPassedOver) {
  SimExecutor executor(1);
  std::vector<int> got;
  const auto sink = Spawn<Sink>(executor, {.mailbox_capacity = 1}, &got);
  auto permit = std::make_unique<Permits<Sink>>(sink.Reserve(1).value());
  auto gone = sink.WhenRoom(1, Soon());
  auto waits = sink.WhenRoom(1, Soon());
  gone = {};
  permit.reset();
  EXPECT_TRUE(std::move(waits).Await(Soon()).ok());
}

TEST(WhenRoomTest, NeverSaysWhy) {
  SimExecutor executor(1);
  std::vector<int> got;
  const auto sink = Spawn<Sink>(executor, {.mailbox_capacity = 2}, &got);
  EXPECT_EQ(sink.WhenRoom(3, Soon()).Await(Soon()).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto permit = std::make_unique<Permits<Sink>>(sink.Reserve(2).value());
  auto waits = sink.WhenRoom(1, Soon());
  sink.Stop(Soon());
  EXPECT_EQ(std::move(waits).Await(Soon()).status().code(), absl::StatusCode::kNotFound);
  permit.reset();
  executor.RunFor(absl::Minutes(1));
  EXPECT_EQ(sink.WhenRoom(1, Soon()).Await(Soon()).status().code(), absl::StatusCode::kNotFound);
}

// Threads that share a small mailbox and all wait for it: nothing is lost, nobody yields.
TEST(WhenRoomTest, ManySendersShareASmallMailbox) {
  constexpr int kSenders = 4;
  constexpr int kEach = 500;
  PoolExecutor executor(2);
  std::vector<int> got;
  const auto sink = Spawn<Sink>(executor, {.mailbox_capacity = 2}, &got);
  std::vector<std::thread> senders;
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&sink, s] {
      for (int i = 0; i < kEach; ++i) {
        auto room = sink.WhenRoom(1, Soon()).Await(Soon());
        ASSERT_TRUE(room.ok()) << room.status();
        ASSERT_TRUE(room->Send(Item{s}).ok());
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_TRUE(StopAndWait(sink, Soon()).ok());
  EXPECT_EQ(got.size(), static_cast<size_t>(kSenders * kEach));
}

struct Leave {};
// Sends its last words to the one that watches it, then fails.
class Watched : public Actor {
 public:
  explicit Watched(ActorRef<class Watching> watching) : watching_(std::move(watching)) {}
  absl::Status Handle(Leave);

 private:
  const ActorRef<Watching> watching_;
};
struct Word {
  std::string text;
};
struct WatchIt {
  ActorRef<Watched> whom;
};
class Watching : public Actor {
 public:
  explicit Watching(std::vector<std::string>* heard) : heard_(*heard) {}
  void Handle(Word word) { heard_.push_back(std::move(word.text)); }
  void Handle(WatchIt watch) { context().Watch(*this, watch.whom); }
  void Handle(Down) { heard_.emplace_back("down"); }

 private:
  std::vector<std::string>& heard_;
};
absl::Status Watched::Handle(Leave) {
  EXPECT_TRUE(watching_.Send(Word{"one"}).ok());
  EXPECT_TRUE(watching_.Send(Word{"two"}).ok());
  return absl::DataLossError("no more");
}

TEST(DownTest, ComesAfterWhatTheActorHasSentBefore) {
  ForEachSeed(200, [](uint64_t seed) {
    SimExecutor executor(seed);
    std::vector<std::string> heard;
    // Down needs no room: the mailbox is full of what came before.
    const auto watching = Spawn<Watching>(executor, {.mailbox_capacity = 2}, &heard);
    const auto watched = Spawn<Watched>(executor, {}, watching);
    ASSERT_TRUE(watching.Send(WatchIt{watched}).ok());
    executor.RunUntilIdle();
    ASSERT_TRUE(watched.Send(Leave{}).ok());
    executor.RunUntilIdle();
    EXPECT_EQ(heard, (std::vector<std::string>{"one", "two", "down"}));
  });
}

TEST(StopModeTest, DrainHandlesWhatWaitsAndDropDropsIt) {
  for (const StopMode mode : {StopMode::kDrain, StopMode::kDrop}) {
    SimExecutor executor(1);
    std::vector<int> got;
    const auto sink = Spawn<Sink>(executor, {}, &got);
    executor.RunUntilIdle();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(sink.Send(Item{i}).ok());
    auto down = WhenDown(sink);
    sink.Stop(Soon(), mode);
    EXPECT_TRUE(std::move(down).Await(Soon())->why.ok());
    EXPECT_EQ(got.size(), mode == StopMode::kDrain ? 3u : 0u);
  }
}

struct Question {
  Promise<int> reply;
};
class Silent : public Actor {
 public:
  void Handle(Question) { FAIL() << "it was told to drop this"; }
};

TEST(StopModeTest, ADropAnswersQuestionsAndWaitsForNoReservedRoom) {
  SimExecutor executor(1);
  const auto silent = Spawn<Silent>(executor, {});
  executor.RunUntilIdle();
  const auto permit = silent.Reserve(1);
  Future<int> answer = silent.Ask(Question{}, Soon());
  auto down = WhenDown(silent);
  silent.Stop(Soon(), StopMode::kDrop);
  EXPECT_TRUE(std::move(down).Await(Soon())->why.ok());
  EXPECT_EQ(std::move(answer).Await(Soon()).status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace pelton
