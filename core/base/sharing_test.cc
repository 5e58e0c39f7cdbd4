// What threads share by one small type each: why something ended, a list, a queue, a table of what
// lives.
#include "core/base/sharing.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EndReasonTest, KeepsTheFirst) {
  EndReason reason;
  EXPECT_FALSE(reason.is_given());
  EXPECT_TRUE(reason.Get().ok());
  EXPECT_TRUE(reason.Give(absl::AbortedError("first")));
  EXPECT_FALSE(reason.Give(absl::AbortedError("second")));
  EXPECT_EQ(reason.Get().message(), "first");
}

TEST(EndReasonTest, TakesNoOkForAReason) {
  EndReason reason;
  EXPECT_TRUE(reason.Give(absl::OkStatus()));
  EXPECT_TRUE(reason.is_given());
  EXPECT_TRUE(absl::IsCancelled(reason.Get()));
}

// Whoever asks would try again for ever, or go on.
TEST(EndReasonTest, IsNothingThatACommunicatorWhichGoesOnAnswers) {
  for (const absl::Status& given : {absl::ResourceExhaustedError("why"), absl::NotFoundError("why"),
                                    absl::UnimplementedError("why")}) {
    EndReason reason;
    EXPECT_TRUE(reason.Give(given));
    EXPECT_EQ(reason.Get(), absl::AbortedError("why"));
  }
}

TEST(EndReasonTest, ThreadsThatGiveAtOnceFindTheSame) {
  for (int repetition = 0; repetition < 200; ++repetition) {
    EndReason reason;
    std::vector<std::string> found(3);
    std::vector<int> taken(found.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < found.size(); ++i) {
      threads.emplace_back([&, i] {
        taken[i] = reason.Give(absl::AbortedError(std::string(100, static_cast<char>('a' + i))));
        found[i] = std::string(reason.Get().message());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(taken[0] + taken[1] + taken[2], 1);
    EXPECT_EQ(found[0].size(), 100u);
    EXPECT_EQ(found[0], found[1]);
    EXPECT_EQ(found[0], found[2]);
  }
}

TEST(SharedListTest, TakesBackOneOfSeveralThatAreEqual) {
  SharedList<int> list;
  list.Add(1);
  list.Add(2);
  list.Add(1);
  EXPECT_TRUE(list.Remove(1));
  EXPECT_THAT(list.All(), ElementsAre(2, 1));
  EXPECT_FALSE(list.Remove(3));
  EXPECT_EQ(list.size(), 2u);
}

TEST(SharedListTest, TakesBackTheOneThatWasEnteredFirst) {
  SharedList<int> list;
  for (int entry : {3, 1, 2}) list.Add(entry);
  EXPECT_EQ(list.TakeFirst(), 3);
  EXPECT_EQ(list.TakeFirst(), 1);
  EXPECT_THAT(list.All(), ElementsAre(2));
  EXPECT_EQ(list.TakeFirst(), 2);
  EXPECT_EQ(list.TakeFirst(), std::nullopt);
}

TEST(SharedListTest, AddsNewOnesOnly) {
  SharedList<int> list;
  EXPECT_TRUE(list.AddNew(1));
  EXPECT_FALSE(list.AddNew(1));
  EXPECT_TRUE(list.Contains(1));
  EXPECT_FALSE(list.Contains(2));
  EXPECT_THAT(list.All(), ElementsAre(1));
}

TEST(SharedListTest, TakesBackWhatIsOver) {
  SharedList<std::unique_ptr<int>> list;
  for (int i = 0; i < 4; ++i) list.Add(std::make_unique<int>(i));
  EXPECT_FALSE(list.RemoveIf([](const std::unique_ptr<int>& entry) { return *entry % 2 == 0; }));
  std::vector<int> left;
  list.ForEach([&](const std::unique_ptr<int>& entry) { left.push_back(*entry); });
  EXPECT_THAT(left, ElementsAre(1, 3));
  EXPECT_TRUE(list.RemoveIf([](const std::unique_ptr<int>&) { return true; }));
}

// The transports' contract: who closes while another thread aborts all.
TEST(SharedListTest, VisitsNothingThatItsOwnerHasTakenBack) {
  SharedList<int*> list;
  std::thread owner([&list] {
    for (int repetition = 0; repetition < 2000; ++repetition) {
      auto mine = std::make_unique<int>(0);
      list.Add(mine.get());
      list.Remove(mine.get());
      EXPECT_GE(*mine, 0);  // freed memory for a visitor that came late
    }
  });
  for (int repetition = 0; repetition < 2000; ++repetition) {
    list.ForEach([](int* entry) { ++*entry; });
  }
  owner.join();
  EXPECT_THAT(list.All(), IsEmpty());
}

TEST(SharedQueueTest, GivesTheOldestFirst) {
  SharedQueue<std::string> queue;
  EXPECT_TRUE(queue.is_empty());
  EXPECT_EQ(queue.Take(), std::nullopt);
  for (const char* entry : {"first", "second", "third"}) EXPECT_TRUE(queue.Push(entry));
  EXPECT_FALSE(queue.is_empty());
  EXPECT_EQ(queue.Take(), "first");
  EXPECT_TRUE(queue.Push("fourth"));
  EXPECT_EQ(queue.TakeNewest(), "fourth");
  EXPECT_THAT(queue.TakeAll(), ElementsAre("second", "third"));
  EXPECT_EQ(queue.TakeNewest(), std::nullopt);
  EXPECT_THAT(queue.TakeAll(), IsEmpty());
  EXPECT_TRUE(queue.is_empty());
}

TEST(SharedQueueTest, RefusesEntriesBeyondItsBound) {
  SharedQueue<int> queue(/*most=*/2);
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_FALSE(queue.Push(3));
  EXPECT_EQ(queue.Take(), 1);
  EXPECT_TRUE(queue.Push(4));
  EXPECT_THAT(queue.TakeAll(), ElementsAre(2, 4));
}

TEST(SharedQueueTest, LosesNoneOfSeveralThreads) {
  SharedQueue<int> queue;
  constexpr int kEach = 2000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&queue, i] {
      for (int k = 0; k < kEach; ++k) queue.Push(2 * k + i);
    });
  }
  std::vector<int> taken[2];
  while (taken[0].size() + taken[1].size() < 2 * kEach) {
    for (int entry : queue.TakeAll()) taken[entry % 2].push_back(entry);
    if (const std::optional<int> entry = queue.Take()) taken[*entry % 2].push_back(*entry);
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int>& mine : taken) {
    EXPECT_EQ(mine.size(), static_cast<size_t>(kEach));
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
  }
}

TEST(SharedTableTest, EntersUnderFreeKeysAsFarAsThereIsRoom) {
  SharedTable<int, std::string> table;
  EXPECT_TRUE(table.Enter(2, "two", /*most=*/2));
  EXPECT_FALSE(table.Enter(2, "other", /*most=*/2));
  EXPECT_TRUE(table.Enter(1, "one", /*most=*/2));
  EXPECT_FALSE(table.Enter(3, "three", /*most=*/2));
  EXPECT_THAT(table.All(), ElementsAre("one", "two"));
  EXPECT_TRUE(table.AnyOf([](const std::string& value) { return value == "two"; }));
  EXPECT_FALSE(table.AnyOf([](const std::string& value) { return value == "three"; }));
}

TEST(SharedTableTest, FindsUntilItIsTaken) {
  SharedTable<int, std::string> table;
  table.Enter(1, "one");
  EXPECT_EQ(table.Find(1), "one");
  EXPECT_EQ(table.Take(1), "one");
  EXPECT_EQ(table.Take(1), std::nullopt);
  EXPECT_EQ(table.Find(1), std::nullopt);
  table.Enter(1, "again");
  EXPECT_THAT(table.TakeAll(), ElementsAre("again"));
  EXPECT_THAT(table.All(), IsEmpty());
}

TEST(SharedTableTest, MakesWhatIsNotThereOnce) {
  SharedTable<int, int> table;
  int made = 0;
  auto make = [&made] { return absl::StatusOr<int>(++made); };
  EXPECT_EQ(*table.FindOrMake(5, make), 1);
  EXPECT_EQ(*table.FindOrMake(5, make), 1);
  auto fail = [] { return absl::StatusOr<int>(absl::ResourceExhaustedError("no memory")); };
  EXPECT_TRUE(absl::IsResourceExhausted(table.FindOrMake(6, fail).status()));
  EXPECT_EQ(table.Find(6), std::nullopt);
}

TEST(LiveTableTest, FindsWhatIsKeptAndMakesItAnewAfterwards) {
  LiveTable<std::string, int> table;
  int made = 0;
  auto make = [&made]() -> absl::StatusOr<std::shared_ptr<int>> {
    return std::make_shared<int>(++made);
  };
  const std::shared_ptr<int> other = *table.FindOrMake("other", make);
  std::shared_ptr<int> kept = *table.FindOrMake("key", make);
  EXPECT_EQ(*table.FindOrMake("key", make), kept);
  EXPECT_EQ(made, 2);
  kept = nullptr;
  EXPECT_EQ(**table.FindOrMake("key", make), 3);
  EXPECT_EQ(*table.FindOrMake("other", make), other);
}

TEST(LiveTableTest, KeepsNothingOfAFailure) {
  LiveTable<int, int> table;
  auto fail = []() -> absl::StatusOr<std::shared_ptr<int>> {
    return absl::ResourceExhaustedError("no memory");
  };
  EXPECT_TRUE(absl::IsResourceExhausted(table.FindOrMake(1, fail).status()));
  EXPECT_TRUE(
      table
          .FindOrMake(1,
                      [] { return absl::StatusOr<std::shared_ptr<int>>(std::make_shared<int>(1)); })
          .ok());
}

TEST(LiveTableTest, ThreadsThatAskAtOnceGetTheSame) {
  LiveTable<int, int> table;
  std::vector<std::shared_ptr<int>> found(4);
  std::vector<std::thread> threads;
  for (std::shared_ptr<int>& mine : found) {
    threads.emplace_back([&table, &mine] {
      mine = *table.FindOrMake(
          7, [] { return absl::StatusOr<std::shared_ptr<int>>(std::make_shared<int>(7)); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::shared_ptr<int>& mine : found) EXPECT_EQ(mine, found[0]);
}

}  // namespace
}  // namespace pelton
