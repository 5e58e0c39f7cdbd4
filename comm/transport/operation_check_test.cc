#include "comm/transport/operation_check.h"

#include <vector>

#include "comm/tags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr Rank kRank{1};
constexpr WorldSize kWorld{4};

Operation Make(OperationKind kind, int32_t peer = kNoPeer, uint64_t count = 4) {
  Operation operation;
  operation.kind = kind;
  operation.peer = peer;
  operation.count = count;
  return operation;
}

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(CheckOperationTest, AcceptsEveryImplementedKind) {
  for (auto kind : {OperationKind::kBarrier, OperationKind::kAllReduce, OperationKind::kReduce,
                    OperationKind::kReduceScatter, OperationKind::kAllGather,
                    OperationKind::kBroadcast, OperationKind::kGather, OperationKind::kScatter,
                    OperationKind::kAllToAll, OperationKind::kSend, OperationKind::kRecv}) {
    EXPECT_EQ(CheckOperation(Make(kind, 2), kRank, kWorld), absl::OkStatus()) << NameOf(kind);
  }
}

TEST(CheckOperationTest, NamesAKindThatIsNotImplemented) {
  for (auto kind : {OperationKind::kAllToAllV, OperationKind::kNeighborAllReduce,
                    OperationKind::kNeighborAllGather}) {
    ExpectRefused(CheckOperation(Make(kind, 2), kRank, kWorld), std::string(NameOf(kind)));
  }
  ExpectRefused(CheckOperation(Make(static_cast<OperationKind>(77)), kRank, kWorld), "77");
}

TEST(CheckOperationTest, NamesAPeerOutsideTheWorld) {
  ExpectRefused(CheckOperation(Make(OperationKind::kBroadcast, 4), kRank, kWorld), "peer: 4");
  ExpectRefused(CheckOperation(Make(OperationKind::kSend, -1), kRank, kWorld), "peer: -1");
}

TEST(CheckOperationTest, RefusesToSendToItself) {
  ExpectRefused(CheckOperation(Make(OperationKind::kSend, 1), kRank, kWorld), "itself");
  EXPECT_TRUE(CheckOperation(Make(OperationKind::kReduce, 1), kRank, kWorld).ok());
}

TEST(CheckOperationTest, NamesDTypeAndOp) {
  Operation operation = Make(OperationKind::kAllReduce);
  operation.reduce_op = ReduceOp::kBitOr;
  ExpectRefused(CheckOperation(operation, kRank, kWorld), "BOR");
  operation.kind = OperationKind::kAllGather;  // does not look at the op
  EXPECT_TRUE(CheckOperation(operation, kRank, kWorld).ok());
  operation.dtype = static_cast<DType>(99);
  ExpectRefused(CheckOperation(operation, kRank, kWorld), "dtype: 99");
}

TEST(CheckOperationTest, RefusesACountWhoseBytesOverflow) {
  ExpectRefused(
      CheckOperation(Make(OperationKind::kAllGather, kNoPeer, uint64_t{1} << 60), kRank, kWorld),
      "count: 1152921504606846976");
}

TEST(ResolveOperationTest, FindsTheAddresses) {
  std::vector<float> source(4), target(16);
  Operation operation = Make(OperationKind::kAllGather);
  operation.set_source(Locate(source.data(), 16));
  operation.set_target(Locate(target.data(), 64));
  const auto memory = ResolveOperation(operation, kRank, kWorld);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->source, reinterpret_cast<std::byte*>(source.data()));
  EXPECT_EQ(memory->target, reinterpret_cast<std::byte*>(target.data()));
}

TEST(ResolveOperationTest, LeavesUnusedMemoryAlone) {
  Operation operation = Make(OperationKind::kGather, 0);
  float source[4] = {};
  operation.set_source(Locate(source, sizeof(source)));
  operation.set_target({RegionId(4000000), 0});  // of no meaning but on the root
  const auto memory = ResolveOperation(operation, kRank, kWorld);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->target, nullptr);
}

TEST(ResolveOperationTest, RefusesMemoryThatIsNotThere) {
  auto region = Region::Create(4096, "resolve");
  ASSERT_TRUE(region.ok());
  Operation operation = Make(OperationKind::kSend, 0);
  operation.set_source({(*region)->id(), 4084});
  ExpectRefused(ResolveOperation(operation, kRank, kWorld).status(), "source: offset 4084");
  operation.set_source({RegionId(4000000), 0});
  ExpectRefused(ResolveOperation(operation, kRank, kWorld).status(), "region 4000000");
  operation.set_source({kPrivateRegion, 0});
  ExpectRefused(ResolveOperation(operation, kRank, kWorld).status(), "source: null address");
}

TEST(DifferenceOfPairTest, ComparesWhatMustAgree) {
  const Operation send = Make(OperationKind::kSend, 1, 4);
  Operation recv = Make(OperationKind::kRecv, 0, 4);
  recv.bucket = BucketId(3);
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)), "");
  recv.count = 5;
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)), "count is 4 on rank 0 and 5 on rank 1");
}

TEST(DifferenceOfPairTest, ComparesTheCollectivesThatMessagesArePartOf) {
  Operation send = Make(OperationKind::kSend, 1, 4);
  Operation recv = Make(OperationKind::kRecv, 0, 4);
  send.flags = recv.flags = FlagsOf(OperationKind::kReduce);
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)), "");
  recv.reduce_op = ReduceOp::kMax;
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)),
            "op is SUM on rank 0 and MAX on rank 1");
  send.bucket = BucketId(3);
  recv.reduce_op = ReduceOp::kSum;
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)),
            "bucket is 3 on rank 0 and -1 on rank 1");
  recv.flags = FlagsOf(OperationKind::kBarrier);
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)),
            "the operation is reduce on rank 0 and barrier on rank 1; bucket is 3 on rank 0 and "
            "-1 on rank 1");
  recv.flags = 0;
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)),
            "the operation is reduce on rank 0 and send on rank 1; bucket is 3 on rank 0 and "
            "-1 on rank 1");
}

TEST(DifferenceOfPairTest, ComparesTheShapesThatMessagesAreMarkedWith) {
  Operation send = Make(OperationKind::kSend, 1, 6);
  Operation recv = Make(OperationKind::kRecv, 0, 6);
  send.flags = recv.flags = FlagsOf(OperationKind::kNeighborAllReduce);
  send.target_offset = recv.source_offset = 5;
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)), "");
  recv.source_offset = 7;
  EXPECT_THAT(DifferenceOfPair(send, Rank(0), recv, Rank(1)),
              HasSubstr("shapes of the tensors differ on rank 0 and rank 1"));
  send.source_offset = recv.target_offset = 64;  // addresses
  recv.source_offset = 5;
  EXPECT_EQ(DifferenceOfPair(send, Rank(0), recv, Rank(1)), "");
}

TEST(DifferenceOfPairTest, NamesTheRankWhoseEarlierStageHasFailed) {
  Operation send = Make(OperationKind::kSend, 1, 6);
  Operation recv = Make(OperationKind::kRecv, 0, 5);
  send.flags = recv.flags = FlagsOf(OperationKind::kNeighborAllReduce);
  send.target_offset = static_cast<uint64_t>(kFailedStageMark);
  EXPECT_THAT(DifferenceOfPair(send, Rank(0), recv, Rank(1)),
              HasSubstr("rank 0 has failed in an earlier stage of this operation (float32 x 6)"));
  send.target_offset = 5;
  recv.source_offset = static_cast<uint64_t>(kFailedStageMark);
  EXPECT_THAT(DifferenceOfPair(send, Rank(0), recv, Rank(1)),
              HasSubstr("rank 1 has failed in an earlier stage of this operation (float32 x 5)"));
}

}  // namespace
}  // namespace pelton
