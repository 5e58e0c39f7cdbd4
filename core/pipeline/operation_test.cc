#include "core/pipeline/operation.h"

#include <string>

#include "core/plan/round_mode.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

Operation SumOf(uint64_t count) {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.count = count;
  return operation;
}

TEST(OperationTest, DescriptionNamesKindBucketTypeAndOp) {
  Operation operation = SumOf(1024);
  operation.sequence = 12;
  operation.bucket = BucketId(3);
  EXPECT_EQ(Describe(operation), "allreduce #12 of bucket 3 (float32 x 1024, SUM)");
}

TEST(OperationTest, DifferenceNamesTheFieldAndBothRanks) {
  EXPECT_EQ(DifferenceOf(SumOf(4), Rank(0), SumOf(5), Rank(1)),
            "count is 4 on rank 0 and 5 on rank 1");
  Operation other = SumOf(4);
  other.dtype = DType::kInt64;
  EXPECT_EQ(DifferenceOf(SumOf(4), Rank(0), other, Rank(2)),
            "dtype is float32 on rank 0 and int64 on rank 2");
}

TEST(OperationTest, ShapesAreComparedWhereBothRanksMarkThem) {
  Operation mine = SumOf(6);
  Operation theirs = SumOf(6);
  mine.tag = 5;
  EXPECT_EQ(DifferenceOf(mine, Rank(0), theirs, Rank(1)), "");
  theirs.tag = 7;
  EXPECT_EQ(DifferenceOf(mine, Rank(0), theirs, Rank(1)),
            "the shapes of the tensors differ on rank 0 and rank 1, although both have 6 elements");
  theirs.count = 7;
  EXPECT_EQ(DifferenceOf(mine, Rank(0), theirs, Rank(1)), "count is 6 on rank 0 and 7 on rank 1");
}

TEST(OperationTest, TheModeOfARoundIsComparedAndKeptOutOfDescriptions) {
  Operation training = SumOf(4);
  training.bucket = BucketId(3);
  Operation evaluation = training;
  evaluation.bucket = InMode(BucketId(3), RoundMode::kEvaluation);
  EXPECT_EQ(DifferenceOf(evaluation, Rank(0), evaluation, Rank(1)), "");
  EXPECT_EQ(Describe(evaluation), Describe(training));
  const std::string difference = DifferenceOf(training, Rank(0), evaluation, Rank(1));
  EXPECT_NE(difference.find("training mode on rank 0"), std::string::npos) << difference;
  EXPECT_NE(difference.find("evaluation mode on rank 1"), std::string::npos) << difference;
  EXPECT_NE(difference.find("no_sync()"), std::string::npos) << difference;
}

TEST(OperationTest, DifferentCallsAreNamedBesideWhatDiffersInThem) {
  for (const RoundMode mode : {RoundMode::kTraining, RoundMode::kEvaluation}) {
    Operation mine = SumOf(4);
    Operation theirs = SumOf(5);
    mine.bucket = InMode(BucketId(7), mode);
    theirs.bucket = InMode(BucketId(8), mode);
    EXPECT_EQ(DifferenceOf(mine, Rank(0), theirs, Rank(1)),
              "count is 4 on rank 0 and 5 on rank 1; bucket is 7 on rank 0 and 8 on rank 1");
  }
}

TEST(OperationTest, PlacesInMemoryMayDiffer) {
  Operation other = SumOf(4);
  other.set_source({RegionId(7), 64});
  EXPECT_EQ(DifferenceOf(SumOf(4), Rank(0), other, Rank(1)), "");
}

TEST(OperationTest, SentBytesAreThoseOfAnOptimalSchedule) {
  const auto sent = [](OperationKind kind, int rank, int root = 0) {
    Operation operation;
    operation.kind = kind;
    operation.count = 3;  // 12 bytes
    operation.peer = root;
    return SentBytesOf(operation, Rank(rank), WorldSize(4));
  };
  EXPECT_EQ(sent(OperationKind::kAllReduce, 1), 18u);
  EXPECT_EQ(sent(OperationKind::kAllToAll, 1), 36u);
  EXPECT_EQ(sent(OperationKind::kAllGather, 1), 36u);
  EXPECT_EQ(sent(OperationKind::kReduceScatter, 1), 36u);
  EXPECT_EQ(sent(OperationKind::kBroadcast, 0), 12u);
  EXPECT_EQ(sent(OperationKind::kBroadcast, 1), 0u);
  EXPECT_EQ(sent(OperationKind::kReduce, 0), 0u);
  EXPECT_EQ(sent(OperationKind::kReduce, 1), 12u);
  EXPECT_EQ(sent(OperationKind::kScatter, 0), 36u);
  EXPECT_EQ(sent(OperationKind::kGather, 3), 12u);
  EXPECT_EQ(sent(OperationKind::kSend, 2), 12u);
  EXPECT_EQ(sent(OperationKind::kBarrier, 2), 0u);
  Operation alone;
  alone.kind = OperationKind::kBroadcast;
  alone.peer = 0;
  alone.count = 3;
  EXPECT_EQ(SentBytesOf(alone, Rank(0), WorldSize(1)), 0u);
}

TEST(OperationTest, ExtentCountsEachRanksBytes) {
  Operation gather = SumOf(10);
  gather.kind = OperationKind::kAllGather;
  const Extent extent = ExtentOf(gather, Rank(1), WorldSize(3));
  EXPECT_EQ(extent.source_bytes, 40u);
  EXPECT_EQ(extent.target_bytes, 120u);

  Operation reduce = SumOf(10);
  reduce.kind = OperationKind::kReduce;
  reduce.peer = 2;
  EXPECT_EQ(ExtentOf(reduce, Rank(0), WorldSize(3)).target_bytes, 0u);
  EXPECT_EQ(ExtentOf(reduce, Rank(2), WorldSize(3)).target_bytes, 40u);
}

}  // namespace
}  // namespace pelton
