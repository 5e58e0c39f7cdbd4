#include "core/base/long_wait.h"

#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string>& Lines() {
  static std::vector<std::string> lines;
  return lines;
}

int& Checks() {
  static int checks = 0;
  return checks;
}

class StallReportTest : public ::testing::Test {
 protected:
  StallReportTest() {
    Lines().clear();
    SetLogSink([](LogLevel, absl::string_view line) { Lines().emplace_back(line); });
  }
  ~StallReportTest() override {
    SetLogSink(nullptr);
    SetStallInterval(absl::Seconds(30));
  }

  void LookAfter(absl::Duration waited) {
    report_.Look(since_, since_ + waited,
                 [](absl::string_view lasted) { return absl::StrCat("waits for ", lasted); });
  }

  absl::Time since_ = absl::UnixEpoch();
  StallReport report_;
};

TEST_F(StallReportTest, TellsAfterTheIntervalAndAgainAfterTwiceAsLong) {
  SetStallInterval(absl::Seconds(10));
  LookAfter(absl::Seconds(9));
  EXPECT_THAT(Lines(), IsEmpty());
  for (int seconds : {10, 11, 19, 20, 39, 41, 79, 82}) LookAfter(absl::Seconds(seconds));
  EXPECT_THAT(
      Lines(),
      ElementsAre(HasSubstr("waits for 10s (since "), HasSubstr("waits for 20s (since "),
                  HasSubstr("waits for 41s (since "), HasSubstr("waits for 1m22s (since ")));
}

TEST_F(StallReportTest, AnotherWaitBeginsAnew) {
  SetStallInterval(absl::Seconds(10));
  LookAfter(absl::Seconds(15));
  since_ += absl::Seconds(20);
  LookAfter(absl::Seconds(5));
  EXPECT_EQ(Lines().size(), 1u);
  LookAfter(absl::Seconds(12));
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(StallReportTest, AnIntervalOfZeroTellsNothing) {
  SetStallInterval(absl::ZeroDuration());
  LookAfter(absl::Hours(100));
  EXPECT_THAT(Lines(), IsEmpty());
}

TEST(CheckInterruptTest, AsksTheInstalledCheckNotTooOften) {
  EXPECT_EQ(CheckInterrupt(), absl::OkStatus()) << "nothing is installed";
  EXPECT_GE(InterruptSlice(), absl::Seconds(1)) << "nobody can interrupt a wait";
  SetInterruptCheck([] {
    ++Checks();
    return InterruptedError("interrupted by a test");
  });
  absl::Status first;
  while (first.ok()) first = CheckInterrupt();
  EXPECT_EQ(Checks(), 1);
  EXPECT_EQ(CheckInterrupt(), absl::OkStatus()) << "asked again at once";
  EXPECT_EQ(Checks(), 1);
  EXPECT_EQ(InterruptSlice(), kInterruptInterval);
  SetInterruptCheck(nullptr);
  EXPECT_TRUE(IsInterrupted(Annotate(first, "barrier")));
  EXPECT_FALSE(IsInterrupted(absl::CancelledError("for another reason")));
  EXPECT_EQ(AsAbort(first), absl::AbortedError("interrupted by a test"));
}

TEST(CallNameTest, TheInnermostCounts) {
  EXPECT_EQ(CallName::Current(), "");
  const CallName outer("barrier", "default");
  {
    const CallName inner("broadcast");
    EXPECT_EQ(CallName::Current(), "broadcast");
  }
  EXPECT_EQ(CallName::Current(), "barrier of group 'default'");
}

}  // namespace
}  // namespace pelton
