#include "comm/group.h"

#include <string>

#include "gmock/gmock.h"
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

void ExpectRefused(const Group& group, const std::string& text) {
  const absl::Status status = CheckGroup(group, WorldSize(3), Rank(0));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), text);
}

TEST(CheckGroupTest, NamesWhatIsWrong) {
  const Generation one(1);
  EXPECT_TRUE(CheckGroup({{Rank(2), Rank(0)}, one}, WorldSize(3), Rank(0)).ok());
  ExpectRefused({{}, one}, "group: has no member");
  ExpectRefused({{Rank(0), Rank(3)}, one}, "group: member 3 is not in [0, 3)");
  ExpectRefused({{Rank(-1)}, one}, "group: member -1 is not in [0, 3)");
  ExpectRefused({{Rank(0), Rank(1), Rank(0)}, one}, "group: member 0 is there twice");
  ExpectRefused({{Rank(1), Rank(2)}, one}, "group: rank 0 is not one of its members");
}

}  // namespace
}  // namespace pelton
