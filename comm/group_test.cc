#include "comm/group.h"

#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(GroupTest, WorldHasAllRanksInOrder) {
  const Group world = Group::World(WorldSize(3), Generation(7));
  EXPECT_EQ(world.members, (std::vector{Rank(0), Rank(1), Rank(2)}));
  EXPECT_EQ(world.size(), WorldSize(3));
  EXPECT_EQ(world.generation, Generation(7));
}

TEST(GroupTest, RankOfIsThePlaceInTheGroup) {
  const Group group{{Rank(5), Rank(2)}, Generation(1)};
  EXPECT_EQ(group.RankOf(Rank(2)), Rank(1));
  EXPECT_EQ(group.RankOf(Rank(0)), std::nullopt);
}

}  // namespace
}  // namespace pelton
