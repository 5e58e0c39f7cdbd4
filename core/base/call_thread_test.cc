#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/threads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;

absl::Time In(absl::Duration duration) { return Clock::Real().Now() + duration; }

TEST(CallThreadTest, MakesCallsInOrderAndAllOfThemBeforeItsEnd) {
  std::vector<int> made;
  {
    CallThread thread("thread");
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(thread.Add([&made, i] { made.push_back(i); }));
    }
  }
  EXPECT_THAT(made, ElementsAre(0, 1, 2));
}

TEST(CallThreadTest, MakesCallsOnAThreadOfItsOwn) {
  std::thread::id where;
  CallThread thread("thread");
  thread.Add([&where] { where = std::this_thread::get_id(); });
  ASSERT_TRUE(thread.AwaitIdle(In(absl::Seconds(60))));
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(CallThreadTest, RefusesCallsBeyondItsBound) {
  std::atomic<bool> may_end{false};
  CallThread thread("thread", /*most_waiting=*/2);
  EXPECT_TRUE(thread.Add([&may_end] { may_end.wait(false); }));
  EXPECT_TRUE(thread.Add([] {}));
  EXPECT_FALSE(thread.Add([] {}));
  EXPECT_FALSE(thread.AwaitIdle(In(absl::Milliseconds(5))));
  may_end = true;
  may_end.notify_all();
  EXPECT_TRUE(thread.AwaitIdle(In(absl::Seconds(60))));
  EXPECT_TRUE(thread.Add([] {}));
}

// The log's lines call for further lines.
TEST(CallThreadTest, MakesWhatACallAdds) {
  std::vector<int> made;
  {
    CallThread thread("thread");
    thread.Add([&] {
      made.push_back(1);
      thread.Add([&made] { made.push_back(2); });
    });
  }
  EXPECT_THAT(made, ElementsAre(1, 2));
}

}  // namespace
}  // namespace pelton
