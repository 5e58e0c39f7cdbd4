#include "core/base/moving_deadline.h"

#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(MovingDeadlineTest, ComesLaterByWhatIsAddedAfterItWasMade) {
  const absl::Time begin = absl::UnixEpoch();
  Standstill standstill;
  standstill.Begin(begin);
  const absl::Time made = begin + absl::Seconds(10);
  const absl::Time given = made + absl::Seconds(1);
  const MovingDeadline deadline(given, &standstill, made);
  EXPECT_EQ(deadline.At(made), given) << "what was before does not count";
  EXPECT_EQ(deadline.At(made + absl::Seconds(5)), given + absl::Seconds(5));
  standstill.End(made + absl::Seconds(7));
  EXPECT_EQ(deadline.At(made + absl::Seconds(30)), given + absl::Seconds(7));
  EXPECT_EQ((deadline + absl::Seconds(2)).At(made + absl::Seconds(30)), given + absl::Seconds(9));
  EXPECT_EQ(MovingDeadline(given).At(made + absl::Seconds(30)), given);
}

}  // namespace
}  // namespace pelton
