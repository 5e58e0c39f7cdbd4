#include "comm/transport/sim/network.h"

#include <cstddef>
#include <fstream>

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

// 10,000 ranks have 100 million links, at 40 bytes or more: only those in use may take memory.
TEST(NetworkTest, ALargeWorldsUnusedLinksTakeNoMemory) {
  constexpr int32_t kRanks = 10'000;
  const auto resident_bytes = [] {
    size_t pages = 0;
    std::ifstream statm("/proc/self/statm");
    statm >> pages >> pages;  // the second one
    return pages * 4096;
  };
  const size_t before = resident_bytes();
  Network network(WorldSize(kRanks), {absl::Microseconds(10), 0, {}}, 0);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    network.Transfer({Rank(rank), Rank((rank + 1) % kRanks)}, 100, kStart);
  }
  EXPECT_EQ(network.TotalBytesSent(), 100u * kRanks);
  EXPECT_EQ(network.NoticeTime({Rank(7), Rank(3)}, kStart), kStart + absl::Microseconds(10));
  EXPECT_LT(resident_bytes() - before, size_t{64} << 20);
}

}  // namespace
}  // namespace pelton
