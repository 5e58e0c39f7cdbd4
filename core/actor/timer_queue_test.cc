#include "core/actor/timer_queue.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "core/actor/context.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton::internal {
namespace {

struct Fire {
  int number;
};
class Recorder : public Actor {
 public:
  explicit Recorder(std::vector<int>* fired) : fired_(fired) {}
  void Handle(Fire fire) { fired_->push_back(fire.number); }

 private:
  std::vector<int>* fired_;
};

MessageNode* FireNode(int number) {
  return NewMessage<Fire>(&SystemMessage<Recorder, Fire>::kKind, Fire{number});
}

TEST(TimerQueueTest, DeliversByTimeThenByOrderOfAddingWhateverIsCancelled) {
  ForEachSeed(200, [](uint64_t seed) {
    std::vector<int> fired;
    SimExecutor executor(seed);
    const auto recorder = Spawn<Recorder>(executor, {}, &fired);
    const auto queue = TimerQueue::Make();
    struct Expected {
      absl::Time when;
      int number;
    };
    std::vector<Expected> expected;
    std::vector<std::pair<int, Timer>> timers;
    for (int number = 0; number < 60; ++number) {
      const absl::Time when = absl::UnixEpoch() + absl::Seconds(executor.Uniform(20));
      bool is_next = false;
      timers.emplace_back(number, queue->Add(when, *recorder.cell(), FireNode(number), &is_next));
      EXPECT_EQ(is_next, std::all_of(expected.begin(), expected.end(),
                                     [&](const Expected& each) { return each.when > when; }));
      expected.push_back({when, number});
      if (executor.Uniform(3) != 0) continue;
      const size_t victim = executor.Uniform(timers.size());
      EXPECT_TRUE(timers[victim].second.Cancel());
      EXPECT_FALSE(timers[victim].second.Cancel());
      std::erase_if(expected,
                    [&](const Expected& each) { return each.number == timers[victim].first; });
      timers.erase(timers.begin() + static_cast<ptrdiff_t>(victim));
    }
    std::stable_sort(expected.begin(), expected.end(),
                     [](const Expected& a, const Expected& b) { return a.when < b.when; });
    while (queue->NextTime() != absl::InfiniteFuture()) {
      EXPECT_FALSE(queue->DeliverDue(queue->NextTime() - absl::Nanoseconds(1)));
      EXPECT_TRUE(queue->DeliverDue(queue->NextTime()));
    }
    executor.RunUntilIdle();
    ASSERT_EQ(fired.size(), expected.size());
    for (size_t i = 0; i < fired.size(); ++i) EXPECT_EQ(fired[i], expected[i].number);
    for (auto& [number, timer] : timers) EXPECT_FALSE(timer.Cancel()) << "it was delivered";
  });
}

TEST(TimerQueueTest, AHandleDoesNotCancelTheNextTimerInItsSlot) {
  std::vector<int> fired;
  SimExecutor executor(1);
  const auto recorder = Spawn<Recorder>(executor, {}, &fired);
  const auto queue = TimerQueue::Make();
  bool is_next = false;
  Timer first = queue->Add(absl::UnixEpoch(), *recorder.cell(), FireNode(1), &is_next);
  queue->DeliverDue(absl::UnixEpoch());
  Timer second = queue->Add(absl::UnixEpoch(), *recorder.cell(), FireNode(2), &is_next);
  EXPECT_FALSE(first.Cancel());
  queue->DeliverDue(absl::UnixEpoch());
  executor.RunUntilIdle();
  EXPECT_EQ(fired, (std::vector<int>{1, 2}));
}

TEST(TimerQueueTest, HandlesOutliveTheExecutor) {
  std::vector<int> fired;
  Timer timer;
  {
    SimExecutor executor(1);
    const auto recorder = Spawn<Recorder>(executor, {}, &fired);
    timer = executor.SetTimer(executor.Now() + absl::Hours(1), *recorder.cell(), FireNode(1));
  }
  EXPECT_FALSE(timer.Cancel());
  EXPECT_TRUE(fired.empty());
}

}  // namespace
}  // namespace pelton::internal
