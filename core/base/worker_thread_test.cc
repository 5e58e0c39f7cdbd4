#include "core/base/worker_thread.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;

absl::Time In(absl::Duration duration) { return Clock::Real().Now() + duration; }

TEST(WorkerThreadTest, MakesCallsInOrderAndAllOfThemBeforeItsEnd) {
  std::vector<int> made;
  {
    WorkerThread worker("worker");
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(worker.Add([&made, i] { made.push_back(i); }));
    }
  }
  EXPECT_THAT(made, ElementsAre(0, 1, 2));
}

TEST(WorkerThreadTest, MakesCallsOnAThreadOfItsOwn) {
  std::thread::id where;
  WorkerThread worker("worker");
  worker.Add([&where] { where = std::this_thread::get_id(); });
  ASSERT_TRUE(worker.AwaitIdle(In(absl::Seconds(60))));
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(WorkerThreadTest, RefusesCallsBeyondItsBound) {
  std::atomic<bool> may_end{false};
  WorkerThread worker("worker", /*most_waiting=*/2);
  EXPECT_TRUE(worker.Add([&may_end] { may_end.wait(false); }));
  EXPECT_TRUE(worker.Add([] {}));
  EXPECT_FALSE(worker.Add([] {}));
  EXPECT_FALSE(worker.AwaitIdle(In(absl::Milliseconds(5))));
  may_end = true;
  may_end.notify_all();
  EXPECT_TRUE(worker.AwaitIdle(In(absl::Seconds(60))));
  EXPECT_TRUE(worker.Add([] {}));
}

// The log's lines call for further lines.
TEST(WorkerThreadTest, MakesWhatACallAdds) {
  std::vector<int> made;
  {
    WorkerThread worker("worker");
    worker.Add([&] {
      made.push_back(1);
      worker.Add([&made] { made.push_back(2); });
    });
  }
  EXPECT_THAT(made, ElementsAre(1, 2));
}

}  // namespace
}  // namespace pelton
