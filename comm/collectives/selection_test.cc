#include "comm/collectives/selection.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

std::string NameFor(const SelectionTable& table, const ProgramShape& shape) {
  const auto entry = table.Select(shape);
  return entry.ok() ? entry->name : std::string(entry.status().message());
}

TEST(SelectionTableTest, TheDefaultHasARecipeForEveryKindSizeAndType) {
  const SelectionTable table = SelectionTable::Default();
  for (int kind = 0; kind <= static_cast<int>(OperationKind::kAllToAll); ++kind) {
    for (int32_t n : {1, 2, 3, 8, 9, 17, 1000}) {
      for (uint64_t count : {uint64_t{0}, uint64_t{100}, uint64_t{1} << 20, uint64_t{1} << 40}) {
        for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
          const ProgramShape shape{.kind = static_cast<OperationKind>(kind),
                                   .world_size = n,
                                   .count = count,
                                   .dtype = static_cast<DType>(dtype)};
          const auto entry = table.Select(shape);
          ASSERT_TRUE(entry.ok()) << entry.status();
          EXPECT_TRUE(entry->factory.supports(shape));
          EXPECT_EQ(entry->name == "alone", n == 1);
        }
      }
    }
  }
}

// 16-bit sums are rounded once, whatever the size and the world.
TEST(SelectionTableTest, ShortFloatsGetARecipeThatRoundsOnce) {
  const SelectionTable table = SelectionTable::Default();
  for (uint64_t count : {uint64_t{1}, uint64_t{10'000}, uint64_t{100'000'000}}) {
    for (int32_t n : {2, 7, 100}) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
        const auto entry = table.Select(
            {.world_size = n, .count = count, .dtype = DType::kBFloat16, .reduce_op = op});
        ASSERT_TRUE(entry.ok()) << entry.status();
        EXPECT_TRUE(entry->factory.rounds_once) << entry->name;
      }
    }
  }
  EXPECT_EQ(NameFor(table, {.world_size = 100,
                            .count = 10'000,
                            .dtype = DType::kFloat16,
                            .reduce_op = ReduceOp::kMax}),
            "recursive_doubling");
}

TEST(SelectionTableTest, TheFirstRowThatFitsIsTaken) {
  const auto table = SelectionTable::Parse(
      "# measured on a Tuesday\n"
      "allreduce 4 1000 ring   # small\n"
      "\n"
      "allreduce 4 0 halving_doubling\n"
      "gather 0 0 pairwise\n");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(NameFor(*table, {.world_size = 4, .count = 250}), "ring");
  EXPECT_EQ(NameFor(*table, {.world_size = 4, .count = 251}), "halving_doubling");
  EXPECT_EQ(NameFor(*table, {.world_size = 5, .count = 250}), "direct");  // the default's
  EXPECT_EQ(NameFor(*table, {.kind = OperationKind::kGather, .world_size = 5, .count = 1}),
            "pairwise");
  EXPECT_EQ(NameFor(*table, {.world_size = 4, .count = 250, .dtype = DType::kFloat16}), "direct");
}

TEST(SelectionTableTest, NamesTheLineAndWhatIsWrongInIt) {
  auto message = [](absl::string_view text) {
    const auto table = SelectionTable::Parse(text);
    EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(table.status().message());
  };
  EXPECT_THAT(message("\nallreduce 4 1000"), HasSubstr("line 2: has 3 fields"));
  EXPECT_THAT(message("allreduc 4 1000 ring"), HasSubstr("line 1: 'allreduc' is no collective"));
  EXPECT_THAT(message("allreduce -1 1000 ring"), HasSubstr("largest world size is '-1'"));
  EXPECT_THAT(message("allreduce 4 many ring"), HasSubstr("largest count of bytes is 'many'"));
  EXPECT_THAT(message("allreduce 4 1000 rong"), HasSubstr("'rong' is not registered"));
}

TEST(SelectionTableTest, ARowWhoseRecipeDoesNotSupportTheKindIsPassedBy) {
  const auto table = SelectionTable::Parse("alltoall 0 0 ring");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(NameFor(*table, {.kind = OperationKind::kAllToAll, .world_size = 3, .count = 5}),
            "pairwise");
}

// As a kind that is new: its recipe is found by being registered.
TEST(SelectionTableTest, WithoutARowTheFirstRecipeByNameThatCanRunIsTaken) {
  const SelectionTable empty;
  EXPECT_EQ(NameFor(empty, {.kind = OperationKind::kBroadcast, .world_size = 3}), "pairwise");
  EXPECT_EQ(NameFor(empty, {.kind = OperationKind::kBroadcast, .world_size = 1}), "alone");
  EXPECT_EQ(NameFor(empty, {.kind = OperationKind::kReduceScatter, .world_size = 3}),
            "halving_doubling");
  EXPECT_EQ(
      NameFor(empty,
              {.kind = OperationKind::kReduceScatter, .world_size = 3, .dtype = DType::kBFloat16}),
      "pairwise");  // rounds once
}

TEST(SelectionTableTest, AKindThatNoRecipeRunsIsUnimplemented) {
  const auto entry =
      SelectionTable::Default().Select({.kind = OperationKind::kAllToAllV, .world_size = 2});
  EXPECT_EQ(entry.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(entry.status().message()), HasSubstr("alltoall_v"));
}

TEST(RecipesForTest, ListsWhatSupportsTheKindAtThatWorldSize) {
  const auto names = RecipesFor("broadcast", 4);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, testing::ElementsAre("pairwise", "tree"));
  EXPECT_THAT(*RecipesFor("barrier", 1), testing::Contains("alone"));
  EXPECT_EQ(RecipesFor("allreduc", 4).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pelton
