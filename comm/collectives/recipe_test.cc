#include "comm/collectives/recipe.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;

// A message to the right of all of the segment, with scratch memory of its length.
size_t WriteOne(const ProgramShape& shape, SegmentBuilder& segment) {
  const Piece scratch = segment.Scratch(segment.count());
  segment.Copy(0, segment.Source(), scratch);
  segment.Send(1, (shape.rank + 1) % shape.world_size, scratch);
  return 3;
}

TEST(PartOfTest, PartsDifferByAtMostOneAndCoverAll) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{6}, uint64_t{7}, most}) {
    uint64_t end = 0;
    for (int32_t i = 0; i < 7; ++i) {
      const Range part = PartOf(count, 7, i);
      EXPECT_EQ(part.begin, end);
      EXPECT_LE(part.count() - count / 7, 1u);
      end = part.end;
    }
    EXPECT_EQ(end, count);
  }
}

TEST(SegmentBuilderTest, LeavesOutWhatHasNoElements) {
  const Program program = WholeProgram({.world_size = 2, .count = 0}, WriteOne);
  EXPECT_EQ(program.strands.size(), 1u);
  EXPECT_TRUE(program.strands[0].empty());
  EXPECT_EQ(program.scratch_count, 0u);
}

TEST(SegmentedProgramTest, SmallTensorsAreOneSegment) {
  const Segmentation cut{.strands = 4, .min_segment_bytes = 100, .max_segment_bytes = 1000};
  EXPECT_EQ(SegmentedProgram({.world_size = 2, .count = 49}, cut, WriteOne).strands.size(), 1u);
  EXPECT_EQ(SegmentedProgram({.world_size = 2, .count = 50}, cut, WriteOne).strands.size(), 2u);
  EXPECT_EQ(SegmentedProgram({.world_size = 2, .count = 1000}, cut, WriteOne).strands.size(), 4u);
}

// Ten segments in four strands: one behind the other, in the strand's own scratch memory.
TEST(SegmentedProgramTest, LargeTensorsGoThroughTheLanesInSegments) {
  const Segmentation cut{.strands = 4, .min_segment_bytes = 100, .max_segment_bytes = 400};
  const Program program = SegmentedProgram({.world_size = 2, .count = 1000}, cut, WriteOne);
  ASSERT_EQ(program.strands.size(), 4u);
  EXPECT_EQ(program.strands[0].size(), 3u * 3 - 1);
  EXPECT_EQ(program.strands[3].size(), 2u * 3 - 1);
  EXPECT_EQ(program.scratch_count, 400u);
  EXPECT_EQ(program.strands[1][0].local[0].sources[0], (Piece{Buffer::kSource, 100, 100}));
  EXPECT_EQ(program.strands[1][3].local[0].sources[0], (Piece{Buffer::kSource, 500, 100}));
  EXPECT_EQ(program.strands[1][4].transfers[0].piece, (Piece{Buffer::kScratch, 100, 100}));
  EXPECT_EQ(SentCount(program), 1000u);
}

TEST(SegmentedProgramTest, ChunksCountForTheSegmentsOfAllOfThem) {
  const Segmentation cut{.strands = 4, .min_segment_bytes = 100};
  const ProgramShape shape{.kind = OperationKind::kAllGather, .world_size = 5, .count = 20};
  EXPECT_EQ(SegmentedProgram(shape, cut, WriteOne).strands.size(), 4u);
}

}  // namespace
}  // namespace pelton
