#include "core/actor/backoff.h"

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Threads: one. Owns: its time.
class SetClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Pass(absl::Duration duration) { now_ += duration; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

TEST(LongLookTest, EndsOnceItHasLasted) {
  SetClock clock;
  LongLook look(absl::Microseconds(50));
  EXPECT_TRUE(look.GoesOn(clock));
  clock.Pass(absl::Microseconds(49));
  EXPECT_TRUE(look.GoesOn(clock));
  clock.Pass(absl::Microseconds(1));
  EXPECT_FALSE(look.GoesOn(clock));
  clock.Pass(absl::Seconds(1));
  EXPECT_FALSE(look.GoesOn(clock)) << "a thread that was woken for nothing sleeps again";
  look.Reset();
  EXPECT_TRUE(look.GoesOn(clock));
}

TEST(LongLookTest, IsNoneWhereNobodyAsksForIt) {
  LongLook look(absl::ZeroDuration());
  EXPECT_FALSE(look.GoesOn());
}

}  // namespace
}  // namespace pelton
