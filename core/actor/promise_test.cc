#include "core/actor/promise.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(PromiseTest, DeliversTheValue) {
  auto [promise, future] = MakePromise<std::string>();
  EXPECT_FALSE(future.ready());
  promise.Set("done");
  EXPECT_FALSE(promise.valid());
  ASSERT_TRUE(future.ready());
  EXPECT_EQ(std::move(future).Take().value(), "done");
}

TEST(PromiseTest, CarriesMoveOnlyValuesAndVoid) {
  auto [promise, future] = MakePromise<std::unique_ptr<int>>();
  promise.Set(std::make_unique<int>(3));
  EXPECT_EQ(**std::move(future).Take(), 3);
  auto [done, finished] = MakePromise<void>();
  done.Set(absl::OkStatus());
  EXPECT_TRUE(std::move(finished).Take().ok());
}

TEST(PromiseTest, DroppedWithoutAResultIsAborted) {  // ONCE-1
  auto [promise, future] = MakePromise<int>();
  { const Promise<int> dropped = std::move(promise); }
  EXPECT_EQ(std::move(future).Take().status().code(), absl::StatusCode::kAborted);
  auto [first, second] = MakePromise<int>();
  first = MakePromise<int>().promise;
  EXPECT_EQ(std::move(second).Take().status().code(), absl::StatusCode::kAborted);
}

TEST(PromiseTest, DroppingTheFutureCancels) {
  auto [promise, future] = MakePromise<int>();
  EXPECT_FALSE(promise.cancelled());
  { const Future<int> dropped = std::move(future); }
  EXPECT_TRUE(promise.cancelled());
  promise.Set(1);
}

TEST(PromiseTest, AwaitEndsAtTheEarlierDeadline) {
  auto [promise, future] = MakePromise<int>(absl::Now() + absl::Milliseconds(2));
  EXPECT_EQ(std::move(future).Await(absl::InfiniteFuture()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(promise.cancelled());
}

TEST(PromiseTest, WakesAThreadThatWaits) {
  for (int i = 0; i < 200; ++i) {
    auto [promise, future] = MakePromise<int>();
    std::thread completer([i, promise = std::move(promise)]() mutable {
      if (i % 2 == 0) std::this_thread::yield();
      promise.Set(i);
    });
    EXPECT_EQ(std::move(future).Await(absl::Now() + absl::Seconds(30)).value(), i);
    completer.join();
  }
}

}  // namespace
}  // namespace pelton
