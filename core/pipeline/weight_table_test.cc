#include "core/pipeline/weight_table.h"

#include <limits>
#include <memory>

#include "core/pipeline/operation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

Neighborhood Two() {
  return {.own = 0.5,
          .sources = {{Rank(1), 0.25}, {Rank(3), 0.25}},
          .destinations = {{Rank(0), 1}, {Rank(1), 1}, {Rank(3), 1}}};
}

TEST(WeightTableTest, IsFoundByItsIdForAsLongAsItLives) {
  auto table = WeightTable::Create(Two());
  ASSERT_TRUE(table.ok()) << table.status();
  auto other = WeightTable::Create(Two());
  ASSERT_TRUE(other.ok());
  const int32_t id = (*table)->id();
  EXPECT_NE(id, (*other)->id());
  EXPECT_EQ(WeightTable::Find(id), *table);
  table->reset();
  EXPECT_EQ(WeightTable::Find(id), nullptr);
  EXPECT_EQ(WeightTable::Find((*other)->id()), *other);
}

TEST(WeightTableTest, RefusesWhatIsNoNeighborhood) {
  auto refusal = [](Neighborhood neighborhood, WeightTable::Form form = {}) {
    return std::string(
        WeightTable::Create(std::move(neighborhood), std::move(form)).status().message());
  };
  Neighborhood twice = Two();
  twice.sources = {{Rank(1), 1}, {Rank(1), 1}};
  EXPECT_THAT(refusal(twice), HasSubstr("sources: rank 1 comes after rank 1"));
  Neighborhood negative = Two();
  negative.destinations[0].rank = Rank(-2);
  EXPECT_THAT(refusal(negative), HasSubstr("destinations: -2 is no rank"));
  Neighborhood infinite = Two();
  infinite.sources[1].weight = std::numeric_limits<double>::infinity();
  EXPECT_THAT(refusal(infinite), HasSubstr("sources: the weight of rank 3 is inf"));
  Neighborhood unknown = Two();
  unknown.own = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal(unknown), HasSubstr("own: the weight is nan"));
  EXPECT_THAT(refusal(Two(), {.source_counts = {4}}),
              HasSubstr("source_counts: 1 counts for 2 sources"));
}

TEST(WeightTableTest, SaysWhatAnOperationReadsWritesAndSends) {
  const auto table = WeightTable::Create(Two(), {.sends_weights = true});
  const auto uneven = WeightTable::Create(Two(), {.source_counts = {7, 0}});
  ASSERT_TRUE(table.ok() && uneven.ok());
  Operation operation;
  operation.kind = OperationKind::kNeighborAllReduce;
  operation.count = 10;
  operation.peer = (*table)->id();
  const WorldSize four(4);
  EXPECT_EQ(ExtentOf(operation, Rank(2), four).source_bytes, 40u);
  EXPECT_EQ(ExtentOf(operation, Rank(2), four).target_bytes, 40u);
  EXPECT_EQ(SentBytesOf(operation, Rank(2), four), 3u * (40 + 8));
  operation.kind = OperationKind::kNeighborAllGather;
  EXPECT_EQ(ExtentOf(operation, Rank(2), four).target_bytes, 80u);
  operation.peer = (*uneven)->id();
  EXPECT_EQ(ExtentOf(operation, Rank(2), four).source_bytes, 40u);
  EXPECT_EQ(ExtentOf(operation, Rank(2), four).target_bytes, 28u);
  EXPECT_EQ(SentBytesOf(operation, Rank(2), four), 3u * 40);
  operation.peer = kNoPeer;
  EXPECT_EQ(SentBytesOf(operation, Rank(2), four), 0u);
}

}  // namespace
}  // namespace pelton
