#include "core/base/inbox.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;

TEST(InboxTest, KeepsMessagesForTheCallbackToCome) {
  Inbox<int> inbox;
  for (int i = 0; i < 3; ++i) inbox.Push(i);
  inbox.Deliver();
  std::vector<int> got;
  inbox.SetCallback([&](int message) { got.push_back(message); });
  EXPECT_THAT(got, ElementsAre(0, 1, 2));
}

TEST(InboxTest, KeepsWhatComesWhileThereIsNoCallback) {
  Inbox<int> inbox;
  std::vector<int> got;
  inbox.SetCallback([&](int message) { got.push_back(message); });
  inbox.SetCallback(nullptr);
  inbox.Push(1);
  inbox.Deliver();
  EXPECT_THAT(got, ElementsAre());
  inbox.SetCallback([&](int message) { got.push_back(message); });
  EXPECT_THAT(got, ElementsAre(1));
}

TEST(InboxTest, DeliversNothingAfterClose) {
  Inbox<int> inbox;
  int count = 0;
  inbox.SetCallback([&](int) { ++count; });
  inbox.Close();
  inbox.Push(0);
  inbox.Deliver();
  EXPECT_EQ(count, 0);
}

// Whether another thread can use its inbox while it is destroyed. Threads: one. Owns: nothing.
class Visitor {
 public:
  explicit Visitor(Inbox<Visitor>* inbox, int* visits) : inbox_(inbox), visits_(visits) {}
  Visitor(Visitor&& other) noexcept
      : inbox_(std::exchange(other.inbox_, nullptr)), visits_(other.visits_) {}
  Visitor& operator=(Visitor&&) = delete;
  ~Visitor() {
    if (inbox_ == nullptr) return;
    const auto has_visited = std::make_shared<std::atomic<bool>>(false);  // with the thread
    threads.emplace_back([inbox = inbox_, has_visited] {
      inbox->Push(Visitor(nullptr, nullptr));
      *has_visited = true;
    });
    const absl::Time deadline = Clock::Real().Now() + absl::Seconds(10);
    while (!*has_visited && Clock::Real().Now() < deadline) std::this_thread::yield();
    if (*has_visited) ++*visits_;
  }

  static std::vector<std::thread> threads;

 private:
  Inbox<Visitor>* inbox_;
  int* visits_;
};
std::vector<std::thread> Visitor::threads;

TEST(InboxTest, HoldsNoLockWhileMessagesAreDestroyed) {
  Inbox<Visitor> inbox;
  int visits = 0;
  inbox.SetCallback([](const Visitor&) {});
  inbox.Push(Visitor(&inbox, &visits));
  inbox.Deliver();
  EXPECT_EQ(visits, 1) << "delivered";
  inbox.Push(Visitor(&inbox, &visits));
  inbox.Close();
  EXPECT_EQ(visits, 2) << "dropped";
  for (std::thread& thread : Visitor::threads) thread.join();
}

TEST(InboxTest, DeliversOneAtATimeAndAllFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 500;
  Inbox<int> inbox;
  int count = 0;  // unguarded: deliveries do not overlap
  inbox.SetCallback([&](int) { ++count; });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kMessages; ++i) {
        inbox.Push(i);
        inbox.Deliver();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  inbox.SetCallback(nullptr);
  EXPECT_EQ(count, kThreads * kMessages);
}

}  // namespace
}  // namespace pelton
