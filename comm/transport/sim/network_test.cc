#include "comm/transport/sim/network.h"

#include "gtest/gtest.h"

namespace pelton {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
const Link kLink{Rank(0), Rank(1)};

TEST(NetworkTest, LatencyAndBandwidthAddUp) {
  Network network(WorldSize(2), {absl::Microseconds(10), 1e6, {}}, 0);
  const auto times = network.Transfer(kLink, 500, kStart);
  EXPECT_EQ(times.left, kStart + absl::Microseconds(500));
  EXPECT_EQ(times.arrived, kStart + absl::Microseconds(510));
}

TEST(NetworkTest, ALinkCarriesOneTransferAfterTheOther) {
  Network network(WorldSize(3), {absl::Microseconds(10), 1e6, {}}, 0);
  network.Transfer(kLink, 500, kStart);
  EXPECT_EQ(network.Transfer(kLink, 100, kStart).arrived, kStart + absl::Microseconds(610));
  const Link other{Rank(0), Rank(2)};
  EXPECT_EQ(network.Transfer(other, 100, kStart).arrived, kStart + absl::Microseconds(110));
}

TEST(NetworkTest, JitterComesFromTheSeedAndNeverReordersALink) {
  const LinkModel model{absl::Microseconds(10), 0, absl::Microseconds(5)};
  Network first(WorldSize(2), model, 1);
  Network again(WorldSize(2), model, 1);
  Network other(WorldSize(2), model, 2);
  bool differs = false;
  absl::Time last = kStart;
  for (int i = 0; i < 100; ++i) {
    const absl::Time arrived = first.Transfer(kLink, 8, kStart).arrived;
    EXPECT_EQ(arrived, again.Transfer(kLink, 8, kStart).arrived);
    differs |= arrived != other.Transfer(kLink, 8, kStart).arrived;
    EXPECT_GE(arrived, last);
    EXPECT_GE(arrived, kStart + absl::Microseconds(10));
    EXPECT_LT(arrived, kStart + absl::Microseconds(15));
    last = arrived;
  }
  EXPECT_TRUE(differs);
}

TEST(NetworkTest, CountsBytesPerDirection) {
  Network network(WorldSize(2), {}, 0);
  network.Transfer(kLink, 500, kStart);
  network.Transfer(kLink, 1, kStart);
  network.Transfer({Rank(1), Rank(1)}, 7, kStart);  // to itself: no wire
  EXPECT_EQ(network.BytesSent(kLink), 501);
  EXPECT_EQ(network.BytesSent({Rank(1), Rank(0)}), 0);
  EXPECT_EQ(network.TotalBytesSent(), 501);
}

TEST(NetworkTest, DelaySlowsOneLinkDown) {
  Network network(WorldSize(2), {absl::Microseconds(10), 0, {}}, 0);
  network.Delay(kLink, absl::Seconds(1));
  const absl::Duration latency = absl::Seconds(1) + absl::Microseconds(10);
  EXPECT_EQ(network.Transfer(kLink, 500, kStart).arrived, kStart + latency);
  EXPECT_EQ(network.NoticeTime(kLink, kStart), kStart + latency);
  EXPECT_EQ(network.NoticeTime({Rank(1), Rank(0)}, kStart), kStart + absl::Microseconds(10));
}

}  // namespace
}  // namespace pelton
