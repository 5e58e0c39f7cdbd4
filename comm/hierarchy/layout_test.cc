#include "comm/hierarchy/layout.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::hierarchy {
namespace {

using ::testing::ElementsAre;

TEST(LayoutTest, LinesUpTheRanksOfTwoHosts) {
  const Layout layout(Group::World(WorldSize(4)), {0, 0, 1, 1});
  EXPECT_EQ(layout.host_count(), 2);
  EXPECT_EQ(layout.rail_count(), 2);
  EXPECT_THAT(layout.RanksOn(1), ElementsAre(2, 3));
  EXPECT_THAT(layout.Rail(1), ElementsAre(Rank(1), Rank(3)));
  EXPECT_TRUE(layout.SameHost(2, 3));
  EXPECT_FALSE(layout.SameHost(1, 2));
}

TEST(LayoutTest, HasAsManyRailsAsTheSmallestHostHasRanks) {
  const Layout layout(Group::World(WorldSize(6)), {5, 7, 7, 7, 5, 7});
  EXPECT_EQ(layout.rail_count(), 2);
  EXPECT_THAT(layout.RanksOn(0), ElementsAre(0, 4));
  EXPECT_THAT(layout.RanksOn(1), ElementsAre(1, 2, 3, 5));
  EXPECT_EQ(layout.LocalRankOf(3), 2);
  EXPECT_THAT(layout.Rail(1), ElementsAre(Rank(4), Rank(2)));
}

// World ranks 0, 1 on one host and 2, 3, 4 on another; the group turns them around.
TEST(LayoutTest, NumbersTheRanksOfAGroupInItsOrder) {
  const std::vector<int32_t> host_of = {0, 0, 1, 1, 1};
  const Group group{{Rank(4), Rank(1), Rank(2)}, Generation(1)};
  const Layout layout(group, host_of);
  EXPECT_THAT(layout.RanksOn(0), ElementsAre(0, 2));
  EXPECT_THAT(layout.RanksOn(1), ElementsAre(1));
  EXPECT_EQ(layout.rail_count(), 1);
  EXPECT_THAT(GroupInside(group, Rank(2), host_of).members, ElementsAre(Rank(2), Rank(0)));
  EXPECT_THAT(GroupInside(group, Rank(1), host_of).members, ElementsAre(Rank(1)));
}

TEST(LayoutTest, OneHostIsOneHost) {
  const Layout layout(Group::World(WorldSize(3)), {4, 4, 4});
  EXPECT_EQ(layout.host_count(), 1);
  EXPECT_EQ(layout.rail_count(), 3);
}

}  // namespace
}  // namespace pelton::hierarchy
