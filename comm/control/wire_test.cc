#include "comm/control/wire.h"

#include <gtest/gtest.h>

namespace pelton::wire {
namespace {

TEST(WireTest, TokensAreComparedWhole) {
  EXPECT_TRUE(SameToken("0123456789abcdef", "0123456789abcdef"));
  EXPECT_FALSE(SameToken("0123456789abcdef", "0123456789abcdeF"));
  EXPECT_FALSE(SameToken("0123456789abcdef", "0123456789abcde"));
  EXPECT_FALSE(SameToken("0123456789abcdef", "0123456789abcdef0"));
  EXPECT_FALSE(SameToken("0123456789abcdef", ""));
}

TEST(WireTest, TimeoutsOfAnySizeGiveADeadline) {
  const absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(DeadlineFromProto(now, -1), now);
  EXPECT_EQ(DeadlineFromProto(now, 2'000'000), now + absl::Seconds(2));
  EXPECT_LT(DeadlineFromProto(now, INT64_MAX), absl::InfiniteFuture());
  EXPECT_EQ(TimeoutToProto(now, now + absl::Seconds(2)), 2'000'000);
  EXPECT_GT(TimeoutToProto(now, absl::InfiniteFuture()), 0);
}

TEST(WireTest, ErrorsStayErrors) {
  EXPECT_EQ(ErrorFromProto(15, "x").code(), absl::StatusCode::kDataLoss);
  for (const int32_t code : {0, -1, 17, INT32_MAX}) {
    EXPECT_EQ(ErrorFromProto(code, "x").code(), absl::StatusCode::kUnknown);
  }
}

TEST(WireTest, OrdersSurviveTheWire) {
  for (const Order::Kind kind : {Order::Kind::kAbort, Order::Kind::kPeerLeft,
                                 Order::Kind::kPeerAbsent, Order::Kind::kPeerBack}) {
    const Order order{kind, Rank(3), absl::AbortedError("bytes \xff")};
    proto::Order message;
    ToProto(order, Generation(5), &message);
    proto::Order received;
    ASSERT_TRUE(received.ParseFromString(message.SerializeAsString()));
    const Order back = FromProto(received);
    EXPECT_EQ(received.generation(), 5);
    EXPECT_EQ(back.kind, order.kind);
    EXPECT_EQ(back.culprit, order.culprit);
    EXPECT_EQ(back.reason, order.reason);
  }
}

}  // namespace
}  // namespace pelton::wire
