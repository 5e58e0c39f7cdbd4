#include <map>
#include <vector>

#include "comm/topology/matching.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

int32_t PeerOf(int32_t rank, int32_t world_size, uint64_t step) {
  return ShiftOnePeer({Rank(rank), WorldSize(world_size)}, step).value();
}

std::vector<int32_t> PeersAt(uint64_t step, int32_t world_size) {
  std::vector<int32_t> peers;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    peers.push_back(PeerOf(rank, world_size, step));
  }
  return peers;
}

TEST(ShiftOneTest, FollowsBaguasFormulaForEvenSizes) {
  EXPECT_EQ(PeersAt(0, 2), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(PeersAt(0, 8), (std::vector<int32_t>{4, 5, 6, 7, 0, 1, 2, 3}));
  EXPECT_EQ(PeersAt(1, 8), (std::vector<int32_t>{5, 6, 7, 4, 3, 0, 1, 2}));
  EXPECT_EQ(PeersAt(6, 8), (std::vector<int32_t>{6, 7, 4, 5, 2, 3, 0, 1}));
}

TEST(ShiftOneTest, LetsOneRankSitOutForOddSizes) {
  EXPECT_EQ(PeersAt(0, 1), (std::vector<int32_t>{0}));
  EXPECT_EQ(PeersAt(0, 3), (std::vector<int32_t>{0, 2, 1}));
  EXPECT_EQ(PeersAt(1, 3), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(PeersAt(2, 3), (std::vector<int32_t>{2, 1, 0}));
}

TEST(ShiftOneTest, IsTheSameOnBothEnds) {
  for (int32_t size = 1; size <= 33; ++size) {
    for (uint64_t step = 0; step < 100; ++step) {
      for (int32_t rank = 0; rank < size; ++rank) {
        const int32_t peer = PeerOf(rank, size, step);
        ASSERT_GE(peer, 0);
        ASSERT_LT(peer, size);
        ASSERT_EQ(PeerOf(peer, size, step), rank)
            << "rank " << rank << " of " << size << " at step " << step;
        ASSERT_EQ(peer == rank,
                  size % 2 == 1 && (2 * rank) % size == static_cast<int32_t>(step) % size);
      }
    }
  }
}

TEST(ShiftOneTest, MeetsEachPartnerOncePerPeriod) {
  for (int32_t size = 1; size <= 17; ++size) {
    const int32_t period = size % 2 == 0 ? size / 2 : size;
    for (int32_t rank = 0; rank < size; ++rank) {
      std::map<int32_t, int> met;
      for (int32_t step = 0; step < period; ++step) {
        ++met[PeerOf(rank, size, static_cast<uint64_t>(step))];
      }
      EXPECT_EQ(met.size(), static_cast<size_t>(period)) << "rank " << rank << " of " << size;
    }
  }
}

TEST(ShiftOneTest, TakesLargeSteps) {
  const uint64_t far = ~uint64_t{0};
  for (int32_t size : {2, 3, 7, 8}) {
    for (int32_t rank = 0; rank < size; ++rank) {
      EXPECT_EQ(PeerOf(PeerOf(rank, size, far), size, far), rank);
    }
  }
}

}  // namespace
}  // namespace pelton
