#include "core/round/scheduler.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(RoundLedgerTest, IsCompleteWhenEachBucketIsOnce) {
  RoundLedger ledger;
  ledger.Reset(2);
  EXPECT_TRUE(ledger.Complete(BucketId(1), absl::OkStatus()).ok());
  EXPECT_TRUE(ledger.done(BucketId(1)));
  EXPECT_FALSE(ledger.complete());
  EXPECT_EQ(ledger.Complete(BucketId(1), absl::OkStatus()).code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(ledger.complete());
  EXPECT_TRUE(ledger.Complete(BucketId(0), absl::OkStatus()).ok());
  EXPECT_TRUE(ledger.complete());
  EXPECT_EQ(ledger.Complete(BucketId(2), absl::OkStatus()).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ledger.Complete(BucketId(-1), absl::OkStatus()).code(), absl::StatusCode::kInternal);
}

TEST(RoundLedgerTest, KeepsTheFirstErrorUntilTheNextRound) {
  RoundLedger ledger;
  ledger.Reset(3);
  ASSERT_TRUE(ledger.Complete(BucketId(0), absl::OkStatus()).ok());
  ASSERT_TRUE(ledger.Complete(BucketId(1), absl::AbortedError("first")).ok());
  ASSERT_TRUE(ledger.Complete(BucketId(2), absl::AbortedError("second")).ok());
  EXPECT_EQ(ledger.first_error().message(), "first");
  ledger.Reset(1);
  EXPECT_TRUE(ledger.first_error().ok());
  EXPECT_FALSE(ledger.complete());
}

TEST(PlanOrderPolicyTest, ReleasesInOrderOnly) {
  PlanOrderPolicy policy;
  policy.Reset(3);
  policy.OnReady(BucketId(2));
  policy.OnReady(BucketId(1));
  EXPECT_EQ(policy.Next(), std::nullopt);
  EXPECT_EQ(policy.Awaited(), BucketId(0));
  policy.OnReady(BucketId(0));
  for (int32_t bucket : {0, 1, 2}) EXPECT_EQ(policy.Next(), BucketId(bucket));
  EXPECT_EQ(policy.Next(), std::nullopt);
  EXPECT_EQ(policy.Awaited(), std::nullopt);
}

}  // namespace
}  // namespace pelton
