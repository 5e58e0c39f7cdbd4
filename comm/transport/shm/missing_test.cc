// Whom a rank waits for while another one stands still in the middle of an allreduce.
#include <algorithm>
#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/transport/shm/test_transports.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using ::testing::ElementsAre;

// Rank 1 does a step of its own whenever rank 0 can do nothing more.
void ExpectRankOneNamedUntilTheEnd(size_t count) {
  const std::vector<std::unique_ptr<Transport>> transports = MakeTestTransports(WorldSize(2));
  const std::vector<std::unique_ptr<Communicator>> ends = OpenWorld(transports, CommunicatorId(1));
  std::vector<float> data[2] = {std::vector<float>(count, 1), std::vector<float>(count, 2)};
  Completion completions[2];
  for (int rank : {0, 1}) {
    const Tensor tensor{data[rank].data(), count, DType::kFloat32};
    completions[rank] = *AllReduce(*ends[rank], tensor, tensor, ReduceOp::kSum);
  }
  int stops = 0;
  for (;; ++stops) {
    ASSERT_LT(stops, 1000) << "rank 0 does not come to an end";
    for (int i = 0; i < 100; ++i) ends[0]->Progress();
    if (ends[0]->Query(completions[0]).done) break;
    ASSERT_THAT(ends[0]->Missing(), ElementsAre(Rank(1)))
        << "after " << stops << " steps of rank 1";
    ends[1]->Progress();
  }
  EXPECT_GT(stops, 3);  // it has posted and worked
  while (!ends[1]->Query(completions[1]).done) ends[1]->Progress();
  EXPECT_EQ(std::count(data[0].begin(), data[0].end(), 3.0f), count);
  EXPECT_EQ(std::count(data[1].begin(), data[1].end(), 3.0f), count);
}

TEST(MissingTest, ARankThatStopsInAStagedAllReduceIsNamedWhereverItStops) {
  ExpectRankOneNamedUntilTheEnd(60'000);
}

TEST(MissingTest, ARankThatStopsInAnAllReduceInSegmentsIsNamedWhereverItStops) {
  ExpectRankOneNamedUntilTheEnd(600'000);
}

}  // namespace
}  // namespace pelton::shm
