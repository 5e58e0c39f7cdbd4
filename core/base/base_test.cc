#include <thread>
#include <type_traits>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(IdsTest, AreDistinctTypesThatCompareByValue) {
  static_assert(!std::is_convertible_v<Rank, WorldSize>);
  static_assert(!std::is_convertible_v<int, Rank>);
  EXPECT_LT(Rank(1), Rank(2));
  EXPECT_EQ(Rank(3).value(), 3);
}

TEST(StatusTest, AnnotateKeepsTheCodeAndPrefixesTheMessage) {
  absl::Status status = Annotate(absl::NotFoundError("no such key"), "rank 2");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "rank 2: no such key");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

TEST(StatusTest, AnnotateMakesItsContextForAnErrorOnly) {
  int made = 0;
  auto context = [&made] { return absl::StrCat("attempt ", ++made); };
  EXPECT_TRUE(Annotate(absl::OkStatus(), context).ok());
  EXPECT_EQ(made, 0);
  EXPECT_EQ(Annotate(absl::NotFoundError("no such key"), context).message(),
            "attempt 1: no such key");
}

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}

absl::StatusOr<int> Quarter(int x) {
  ASSIGN_OR_RETURN(int half, Half(x));
  return Half(half);
}

TEST(StatusTest, AssignOrReturnStopsAtTheFirstError) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(7).status().message(), "odd");
}

TEST(CheckDeathTest, FailedCheckNamesTheConditionAndItsMessage) {
  EXPECT_DEATH(PELTON_CHECK(1 + 1 == 3) << "sums", "1 \\+ 1 == 3 sums");
}

TEST(SyncTest, CondVarWakesAWaiterWhoseConditionHolds) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  std::thread setter([&] {
    MutexLock lock(&mutex);
    ready = true;
    changed.SignalAll();
  });
  const absl::Time deadline = Clock::Real().Now() + absl::Seconds(10);
  {
    MutexLock lock(&mutex);
    while (!ready && Clock::Real().Now() < deadline) changed.WaitWithDeadline(&mutex, deadline);
    EXPECT_TRUE(ready);
  }
  setter.join();
}

}  // namespace
}  // namespace pelton
