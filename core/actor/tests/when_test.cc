#include "core/actor/when.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/actor/promise.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Promises, and their futures in a vector.
template <typename T>
struct Pairs {
  explicit Pairs(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      auto [promise, future] = MakePromise<T>();
      promises.push_back(std::move(promise));
      futures.push_back(std::move(future));
    }
  }
  std::vector<Promise<T>> promises;
  std::vector<Future<T>> futures;
};

TEST(WhenAllTest, YieldsTheValuesInTheOrderOfTheFutures) {
  Pairs<std::unique_ptr<int>> pairs(3);
  auto all = WhenAll(std::move(pairs.futures));
  for (const size_t i : {2, 0, 1}) {
    EXPECT_FALSE(all.ready());
    pairs.promises[i].Set(std::make_unique<int>(static_cast<int>(i)));
  }
  ASSERT_TRUE(all.ready());
  const auto values = std::move(all).Take();
  ASSERT_TRUE(values.ok());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(*(*values)[i], static_cast<int>(i));
}

TEST(WhenAllTest, TheFirstErrorEndsItAndCancelsTheOthers) {
  Pairs<int> pairs(3);
  auto all = WhenAll(std::move(pairs.futures));
  pairs.promises[1].Set(absl::DataLossError("gone"));
  ASSERT_TRUE(all.ready());
  EXPECT_EQ(std::move(all).Take().status(), absl::DataLossError("gone"));
  EXPECT_TRUE(pairs.promises[0].cancelled());
  EXPECT_TRUE(pairs.promises[2].cancelled());
  pairs.promises[0].Set(absl::InternalError("late"));  // nobody is told
}

TEST(WhenAllTest, TakesFuturesOfNothingAndNoFutures) {
  Pairs<void> pairs(2);
  Future<void> all = WhenAll(std::move(pairs.futures));
  pairs.promises[0].Set(absl::OkStatus());
  pairs.promises[1].Set(absl::OkStatus());
  EXPECT_TRUE(std::move(all).Take().ok());
  EXPECT_TRUE(WhenAll(std::vector<Future<void>>()).ready());
  EXPECT_TRUE(WhenAll(std::vector<Future<int>>()).ready());
}

TEST(WhenAllTest, DroppingItCancelsWhatIsNotCompleteWhenTheNextOneCompletes) {
  Pairs<int> pairs(3);
  auto all = WhenAll(std::move(pairs.futures));
  all = {};
  EXPECT_FALSE(pairs.promises[1].cancelled());
  pairs.promises[0].Set(1);
  EXPECT_TRUE(pairs.promises[1].cancelled());
  EXPECT_TRUE(pairs.promises[2].cancelled());
}

TEST(WhenAnyTest, YieldsTheFirstResultAndCancelsTheOthers) {
  Pairs<int> pairs(3);
  auto any = WhenAny(std::move(pairs.futures));
  pairs.promises[2].Set(7);
  ASSERT_TRUE(any.ready());
  const auto first = std::move(any).Take();
  EXPECT_EQ(first->index, 2u);
  EXPECT_EQ(*first->result, 7);
  EXPECT_TRUE(pairs.promises[0].cancelled());
}

TEST(WhenAnyTest, AFutureThatIsCompleteAlreadyWins) {
  Pairs<void> pairs(2);
  pairs.promises[1].Set(absl::UnavailableError("away"));
  const auto first = WhenAny(std::move(pairs.futures)).Await(absl::InfiniteFuture());
  EXPECT_EQ(first->index, 1u);
  EXPECT_EQ(first->result, absl::UnavailableError("away"));
}

// From many threads at once: one result, and no value is lost.
TEST(WhenAllTest, ManyThreadsCompleteIt) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    Pairs<int> pairs(4);
    auto all = WhenAll(std::move(pairs.futures));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&pairs, i] { pairs.promises[static_cast<size_t>(i)].Set(i); });
    }
    const auto values = std::move(all).Await(absl::InfiniteFuture());
    EXPECT_EQ(*values, (std::vector<int>{0, 1, 2, 3}));
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace pelton
