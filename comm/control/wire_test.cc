#include "comm/control/wire.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

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

template <typename Message, typename Value>
Value ThroughTheWire(Value value) {
  Message sent, received;
  ToProto(std::move(value), &sent);
  EXPECT_TRUE(received.ParseFromString(sent.SerializeAsString()));
  return *FromProto(received);
}

TEST(WireTest, QuestionsSurviveTheWire) {
  const auto sent = [](ControlQuestion question) {
    return ThroughTheWire<proto::ControlQuestion>(std::move(question));
  };
  const KeyValueRequest set{KeyValueRequest::Kind::kCompareAndSet, {"k", "l"}, "v", "e", -7};
  const auto set_back = std::get<KeyValueRequest>(sent(set));
  EXPECT_EQ(set_back.kind, set.kind);
  EXPECT_EQ(set_back.keys, set.keys);
  EXPECT_EQ(set_back.value + set_back.expected, "ve");
  EXPECT_EQ(set_back.delta, -7);
  const std::vector<Rank> members = {Rank(2), Rank(0)};
  const auto gather = std::get<AllGatherRequest>(sent(AllGatherRequest{"n", "v\xff", members}));
  EXPECT_EQ(gather.name + gather.value, "nv\xff");
  EXPECT_EQ(gather.members, members);
  const auto select = std::get<SelectPeersRequest>(sent(SelectPeersRequest{
      CommunicatorId(6), members, PeerPolicy::kLatencyAware, uint64_t{1} << 40}));
  EXPECT_EQ(select.group, CommunicatorId(6));
  EXPECT_EQ(select.members, members);
  EXPECT_EQ(select.policy, PeerPolicy::kLatencyAware);
  EXPECT_EQ(select.step, uint64_t{1} << 40);
  const auto find = std::get<FindPeerRequest>(sent(FindPeerRequest{CommunicatorId(4), members, 9}));
  EXPECT_EQ(find.group, CommunicatorId(4));
  EXPECT_EQ(find.members, members);
  EXPECT_EQ(find.round, 9);
}

TEST(WireTest, AnswersSurviveTheWire) {
  const auto sent = [](ControlAnswer answer) {
    return ThroughTheWire<proto::ControlAnswer>(std::move(answer));
  };
  const auto value = std::get<KeyValueResult>(sent(KeyValueResult{"v\xff", -3}));
  EXPECT_EQ(value.value, "v\xff");
  EXPECT_EQ(value.number, -3);
  const std::vector<std::string> values = {"a", "", "\xff"};
  const AllGatherResult gathered{std::make_shared<std::vector<std::string>>(values)};
  EXPECT_EQ(*std::get<AllGatherResult>(sent(gathered)).values, values);
  EXPECT_EQ(*gathered.values, values) << "the answers of other ranks have them, too";
  EXPECT_EQ(std::get<Matching>(sent(Matching{1, 0, 2})), (Matching{1, 0, 2}));
  const auto match = std::get<PeerMatch>(sent(PeerMatch{Rank(1), 5}));
  EXPECT_EQ(match.peer, Rank(1));
  EXPECT_EQ(match.number, 5);
}

TEST(WireTest, KindsThatAreNotKnownAreErrors) {
  EXPECT_EQ(FromProto(proto::ControlQuestion()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FromProto(proto::ControlAnswer()).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace pelton::wire
