#include "backend/link/set_up_log.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace pelton {
namespace {

proto::LinkCall Get(const std::string& key, int64_t timeout_us) {
  proto::LinkCall call;
  call.mutable_question()->mutable_key_value()->add_keys(key);
  call.set_timeout_us(timeout_us);
  return call;
}

proto::LinkReply Value(const std::string& value) {
  proto::LinkReply reply;
  reply.mutable_answer()->mutable_key_value()->set_value(value);
  return reply;
}

void Make(SetUpLog& log, uint64_t attachment, const proto::LinkCall& call,
          const proto::LinkReply& reply) {
  log.Makes(attachment);
  log.Made(attachment, call, reply);
}

TEST(SetUpLogTest, AnHeirIsAnsweredAsOftenAsTheFirstWas) {
  SetUpLog log;
  log.Begin(1, /*is_heir=*/false);
  EXPECT_FALSE(log.Replay(Get("a", 1)).has_value());
  Make(log, 1, Get("a", 1), Value("one"));
  Make(log, 1, Get("b", 1), Value("two"));
  Make(log, 1, Get("a", 2), Value("three"));
  log.Keep();
  for (int heir = 0; heir < 2; ++heir) {
    log.Begin(2 + heir, /*is_heir=*/true);
    EXPECT_EQ(log.Replay(Get("b", 7))->answer().key_value().value(), "two") << "in whatever order";
    EXPECT_EQ(log.Replay(Get("a", 7))->answer().key_value().value(), "one");
    EXPECT_EQ(log.Replay(Get("a", 7))->answer().key_value().value(), "three");
    EXPECT_FALSE(log.Replay(Get("a", 7)).has_value());
    EXPECT_FALSE(log.Replay(Get("c", 7)).has_value());
    log.Keep();
  }
  log.Begin(4, /*is_heir=*/false);
  log.Keep();
  log.Begin(5, /*is_heir=*/true);
  EXPECT_FALSE(log.Replay(Get("a", 7)).has_value()) << "of an earlier line of trainers";
}

TEST(SetUpLogTest, ACallSinceTheLastSnapshotLeavesNothingToAnHeir) {
  SetUpLog log;
  log.Begin(1, /*is_heir=*/false);
  Make(log, 1, Get("a", 1), Value("one"));
  EXPECT_TRUE(log.is_whole()) << "before the first snapshot there is nothing to miss";
  log.Keep();
  EXPECT_TRUE(log.is_whole());
  Make(log, 1, Get("a", 1), Value("one"));
  EXPECT_FALSE(log.is_whole());
  log.Keep();
  EXPECT_TRUE(log.is_whole());
  log.Spoil();
  EXPECT_FALSE(log.is_whole());
}

TEST(SetUpLogTest, ACallUnderWayLeavesNothingToAnHeir) {
  SetUpLog log;
  log.Begin(1, /*is_heir=*/false);
  log.Makes(1);
  EXPECT_FALSE(log.is_whole()) << "the others may have got it";
  log.Made(1, Get("a", 1), Value("one"));
  log.Keep();
  EXPECT_TRUE(log.is_whole());
  log.Makes(1);
  EXPECT_FALSE(log.is_whole());
}

TEST(SetUpLogTest, ACallOfAnEarlierTrainerIsNotThatOfTheNext) {
  SetUpLog log;
  log.Begin(1, /*is_heir=*/false);
  log.Makes(1);
  log.Begin(2, /*is_heir=*/false);
  EXPECT_TRUE(log.is_whole());
  log.Made(1, Get("a", 1), Value("too late"));
  Make(log, 2, Get("a", 1), Value("one"));
  EXPECT_TRUE(log.is_whole());
  log.Keep();
  log.Begin(3, /*is_heir=*/true);
  EXPECT_EQ(log.Replay(Get("a", 7))->answer().key_value().value(), "one");
}

// A snapshot that is copied beside training.
TEST(SetUpLogTest, ACallAfterTheSnapshotHasBegunIsNotInIt) {
  SetUpLog log;
  log.Begin(1, /*is_heir=*/false);
  log.KeepBegun();
  EXPECT_FALSE(log.has_kept()) << "none was begun";
  log.Keep();
  Make(log, 1, Get("a", 1), Value("one"));
  log.BeginKeep();
  EXPECT_FALSE(log.is_whole()) << "it does not count yet";
  log.KeepBegun();
  EXPECT_TRUE(log.is_whole());
  log.BeginKeep();
  Make(log, 1, Get("b", 1), Value("two"));
  log.KeepBegun();
  EXPECT_FALSE(log.is_whole());
  log.BeginKeep();
  log.Keep();
  log.KeepBegun();
  EXPECT_TRUE(log.is_whole()) << "what was begun before is older";
}

TEST(OperationLogTest, KeepsNothingOnceItIsTooMuch) {
  OperationLog log(/*most_bytes=*/10'000);
  const std::byte brought[1'000] = {};
  Operation sum;
  for (int i = 0; i < 10; ++i) log.Ended(log.Add(sum), brought, sizeof(brought));
  EXPECT_FALSE(log.is_whole());
  EXPECT_EQ(log.size(), 0);
  log.Ended(log.Add(sum), brought, sizeof(brought));
  EXPECT_EQ(log.size(), 0) << "the training goes on";
}

TEST(OperationLogTest, GivesWhatTheSameOperationHasBrought) {
  OperationLog log;
  Operation sum;
  sum.kind = OperationKind::kAllReduce;
  sum.count = 2;
  sum.set_target({RegionId(3), 64});
  const size_t number = log.Add(sum);
  EXPECT_FALSE(log.is_whole()) << "it has not ended";
  const std::byte brought[] = {std::byte{1}, std::byte{2}};
  log.Ended(number, brought, sizeof(brought));
  EXPECT_TRUE(log.is_whole());
  sum.set_target({RegionId(9), 0});  // the heir's memory
  ASSERT_NE(log.Find(number, sum, 2), nullptr);
  EXPECT_EQ((*log.Find(number, sum, 2))[1], std::byte{2});
  EXPECT_EQ(log.Find(number, sum, 3), nullptr) << "another size";
  sum.reduce_op = ReduceOp::kMax;
  EXPECT_EQ(log.Find(number, sum, 2), nullptr) << "another operation";
}

}  // namespace
}  // namespace pelton
