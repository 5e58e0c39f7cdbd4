#include <cfenv>
#include <string>
#include <thread>
#include <type_traits>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/floating_point.h"
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

TEST(StatusTest, CutToFitCutsBetweenTwoLetters) {
  EXPECT_EQ(CutToFit("rank 1", 6), "rank 1");
  EXPECT_EQ(CutToFit("rank 1", 4), "rank");
  const std::string text = "x\xd0\xb6\xe9\x95\xbf";  // letters of 1, 2 and 3 bytes
  const size_t cuts[] = {0, 1, 1, 3, 3, 3, 6, 6};
  for (size_t most = 0; most < 8; ++most) EXPECT_EQ(CutToFit(text, most).size(), cuts[most]);
}

TEST(StatusTest, AssignOrReturnStopsAtTheFirstError) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(7).status().message(), "odd");
}

TEST(CheckDeathTest, FailedCheckNamesTheConditionAndItsMessage) {
  EXPECT_DEATH(PELTON_CHECK(1 + 1 == 3) << "sums", "1 \\+ 1 == 3 sums");
}

bool RoundsUp() {
  volatile float one = 1;
  volatile float little = 1e-10F;
  return one + little > 1;
}

TEST(DefaultFloatingPointTest, IsTheStateOfANewProcessForAScope) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  bool inside = true;
  {
    const DefaultFloatingPoint scope;
    inside = RoundsUp();
  }
  const bool afterwards = RoundsUp();
  std::fesetround(FE_TONEAREST);
  EXPECT_FALSE(inside);
  EXPECT_TRUE(afterwards);
}

#if defined(__x86_64__)
TEST(DefaultFloatingPointTest, KeepsDenormalsThatTheThreadFlushes) {
  const unsigned before = _mm_getcsr();
  volatile float tiny = 1e-39F;
  _mm_setcsr(before | _MM_FLUSH_ZERO_ON | 0x0040);  // as torch.set_flush_denormal(True)
  volatile float outside = tiny + tiny;
  volatile float inside = 0;
  {
    const DefaultFloatingPoint scope;
    inside = tiny + tiny;
  }
  _mm_setcsr(before);
  EXPECT_EQ(outside, 0);
  EXPECT_EQ(inside, 2e-39F);
}
#endif

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
