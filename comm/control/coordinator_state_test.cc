#include "comm/control/coordinator_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/limits.h"

namespace pelton {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kSilence = absl::Seconds(10);
const absl::Time kStart = absl::UnixEpoch();

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

JoinRequest MakeJoin(int rank, int world_size) {
  return {.job = "job",
          .rank = Rank(rank),
          .world_size = WorldSize(world_size),
          .host = {"boot", 1, 100 + rank}};
}

// The state machine with a world in it, and short forms of its events.
// Threads: the test's. Owns: the state.
class CoordinatorStateTest : public testing::Test {
 protected:
  // All ranks have joined at the start, as generation 1, and opened their streams.
  void MakeWorld(int world_size) {
    Outbox outbox;
    for (int rank = 0; rank < world_size; ++rank) {
      state_.Join(NextCall(0, 60), MakeJoin(rank, world_size), &outbox);
    }
    ASSERT_THAT(outbox.replies, SizeIs(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      ASSERT_TRUE(state_.OpenStream(Self(rank), At(0), &outbox).ok());
    }
  }
  Call NextCall(double now, double timeout) { return {++last_call_, At(now), At(now + timeout)}; }
  static Caller Self(int rank, uint32_t generation = 1) {
    return {"job", Rank(rank), Generation(generation)};
  }
  Outbox Tick(double now) {
    Outbox outbox;
    state_.Tick(At(now), &outbox);
    return outbox;
  }

  uint64_t last_call_ = 0;
  CoordinatorState state_{kSilence};
};

TEST_F(CoordinatorStateTest, JoinWaitsForTheWorldAndNoLonger) {
  Outbox outbox;
  state_.Join(NextCall(0, 5), MakeJoin(1, 2), &outbox);
  EXPECT_THAT(outbox.replies, IsEmpty());
  EXPECT_EQ(state_.NextDeadline(), At(5));
  state_.Join(NextCall(1, 5), MakeJoin(0, 2), &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(2));
  EXPECT_TRUE(outbox.replies[0].status.ok());
  EXPECT_EQ(outbox.replies[0].membership, outbox.replies[1].membership);
  EXPECT_EQ(outbox.replies[0].membership->generation, Generation(1));
}

TEST_F(CoordinatorStateTest, FirstJoinThatTimesOutEndsAll) {
  Outbox outbox;
  state_.Join(NextCall(0, 5), MakeJoin(0, 4), &outbox);
  state_.Join(NextCall(1, 60), MakeJoin(2, 4), &outbox);
  EXPECT_THAT(Tick(4.9).replies, IsEmpty());
  const Outbox expired = Tick(5);
  ASSERT_THAT(expired.replies, SizeIs(2));
  for (const Reply& reply : expired.replies) {
    EXPECT_EQ(reply.status.message(), "job 'job': 2 of 4 ranks joined within 5s; missing: 1, 3");
  }
  EXPECT_EQ(state_.rank_count(), 0);
  EXPECT_EQ(state_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(CoordinatorStateTest, JoinCancelledByItsProcessEndsAll) {
  Outbox outbox;
  state_.Join(NextCall(0, 5), MakeJoin(0, 3), &outbox);
  state_.Join(NextCall(0, 5), MakeJoin(1, 3), &outbox);
  state_.Cancel("job", 2, &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(1));
  EXPECT_EQ(outbox.replies[0].call, 1);
  EXPECT_EQ(outbox.replies[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(outbox.replies[0].status.message(),
              HasSubstr("rank 1 (pid 101) went away while it was joining"));
}

TEST_F(CoordinatorStateTest, ContradictionIsForgottenWhenItsJoinsWouldHaveTimedOut) {
  Outbox outbox;
  state_.Join(NextCall(0, 5), MakeJoin(0, 3), &outbox);
  state_.Join(NextCall(1, 5), MakeJoin(1, 4), &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(2));
  Tick(5.9);
  state_.Join(NextCall(5.9, 5), MakeJoin(1, 3), &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(3));
  EXPECT_EQ(outbox.replies[2].status, outbox.replies[0].status);
  Tick(6);
  EXPECT_EQ(state_.NextDeadline(), absl::InfiniteFuture());
  state_.Join(NextCall(6, 5), MakeJoin(1, 3), &outbox);
  EXPECT_THAT(outbox.replies, SizeIs(3));
  EXPECT_EQ(state_.rank_count(), 1);
}

TEST_F(CoordinatorStateTest, SilentRankIsGivenUpAndAllAreTold) {
  MakeWorld(3);
  EXPECT_EQ(state_.NextDeadline(), At(10));
  ASSERT_TRUE(state_.Heartbeat(Self(0), {Round(3)}, At(6)).ok());
  ASSERT_TRUE(state_.Heartbeat(Self(1), {Round(2)}, At(1)).ok());
  ASSERT_TRUE(state_.Heartbeat(Self(2), {Round(3)}, At(7)).ok());
  EXPECT_THAT(Tick(10).orders, IsEmpty());
  EXPECT_EQ(state_.NextDeadline(), At(11));
  const Outbox outbox = Tick(11);
  ASSERT_THAT(outbox.orders, SizeIs(2));
  EXPECT_EQ(outbox.orders[0].to, Self(0));
  EXPECT_EQ(outbox.orders[1].to, Self(2));
  EXPECT_EQ(outbox.orders[0].order.culprit, Rank(1));
  EXPECT_EQ(outbox.orders[0].order.reason.message(),
            "job 'job': rank 1 (pid 101) died: no heartbeat for 10s; last heard 10s before, in "
            "round 2");
  ASSERT_THAT(outbox.ended_streams, SizeIs(1));
  EXPECT_EQ(outbox.ended_streams[0].rank, Self(1));
  // It may only have been slow; nothing that it says counts any more.
  EXPECT_EQ(state_.Heartbeat(Self(1), {Round(9)}, At(12)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CoordinatorStateTest, RankThatNeverOpensAStreamIsGivenUp) {
  Outbox outbox;
  state_.Join(NextCall(0, 5), MakeJoin(0, 1), &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(1));
  Tick(10);
  EXPECT_EQ(state_.rank_count(), 0);
}

TEST_F(CoordinatorStateTest, StreamThatOpensLateGetsTheOrdersItMissed) {
  Outbox outbox;
  for (int rank = 0; rank < 3; ++rank) state_.Join(NextCall(0, 5), MakeJoin(rank, 3), &outbox);
  state_.StreamBroke(Self(1), At(1), &outbox);
  EXPECT_THAT(outbox.orders, IsEmpty());
  ASSERT_TRUE(state_.OpenStream(Self(2), At(2), &outbox).ok());
  ASSERT_THAT(outbox.orders, SizeIs(1));
  EXPECT_EQ(outbox.orders[0].to, Self(2));
  EXPECT_EQ(outbox.orders[0].order.culprit, Rank(1));
}

TEST_F(CoordinatorStateTest, SecondStreamOfARankIsRefused) {
  MakeWorld(1);
  Outbox outbox;
  EXPECT_EQ(state_.OpenStream(Self(0), At(1), &outbox).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CoordinatorStateTest, MessagesOfOtherGenerationsAreRefused) {
  MakeWorld(1);
  Outbox outbox;
  ASSERT_TRUE(state_.Leave(Self(0), &outbox).ok());
  state_.Join(NextCall(1, 5), MakeJoin(0, 1), &outbox);
  ASSERT_EQ(outbox.replies.back().membership->generation, Generation(2));
  for (const uint32_t generation : {1u, 3u}) {
    const Caller stale = Self(0, generation);
    const auto refused = absl::StatusCode::kFailedPrecondition;
    EXPECT_EQ(state_.Heartbeat(stale, {Round(1)}, At(1)).code(), refused);
    EXPECT_EQ(state_.OpenStream(stale, At(1), &outbox).code(), refused);
    EXPECT_EQ(state_.Leave(stale, &outbox).code(), refused);
    EXPECT_EQ(state_.Report(stale, absl::InternalError("x"), &outbox).code(), refused);
    Outbox calls;
    state_.Ask(NextCall(1, 5), stale, AllGatherRequest{"name", "value"}, &calls);
    state_.Ask(NextCall(1, 5), stale,
               KeyValueRequest{.kind = KeyValueRequest::Kind::kNumKeys, .keys = {}}, &calls);
    ASSERT_THAT(calls.replies, SizeIs(2));
    EXPECT_EQ(calls.replies[0].status.code(), refused);
    EXPECT_EQ(calls.replies[1].status.code(), refused);
    EXPECT_THAT(calls.replies[1].status.message(), HasSubstr("the job is at 2"));
    state_.StreamBroke(stale, At(1), &calls);
  }
  EXPECT_EQ(state_.rank_count(), 1);
}

TEST_F(CoordinatorStateTest, CancelledGatherTakesItsValueBack) {
  MakeWorld(2);
  Outbox outbox;
  const Call first = NextCall(1, 60);
  state_.Ask(first, Self(0), AllGatherRequest{"name", "old"}, &outbox);
  state_.Cancel("job", first.id, &outbox);
  state_.Ask(NextCall(2, 60), Self(1), AllGatherRequest{"name", "b"}, &outbox);
  EXPECT_THAT(outbox.replies, IsEmpty());
  state_.Ask(NextCall(3, 60), Self(0), AllGatherRequest{"name", "new"}, &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(2));
  EXPECT_THAT(*std::get<AllGatherResult>(outbox.replies[0].answer).values, ElementsAre("new", "b"));
}

TEST_F(CoordinatorStateTest, GatherRefusesASecondCallOfOneRankAndValuesTooLarge) {
  MakeWorld(2);
  Outbox outbox;
  state_.Ask(NextCall(1, 60), Self(0),
             AllGatherRequest{"name", std::string(limits::kMaxValueBytes, 'v')}, &outbox);
  state_.Ask(NextCall(1, 60), Self(0), AllGatherRequest{"name", "again"}, &outbox);
  state_.Ask(NextCall(1, 60), Self(1), AllGatherRequest{"name", "v"}, &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(2));
  EXPECT_EQ(outbox.replies[0].status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(outbox.replies[1].status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CoordinatorStateTest, GatherRefusesMembersThatCannotBe) {
  MakeWorld(3);
  using Members = std::vector<Rank>;
  for (const Members& members : {Members{Rank(0), Rank(3)}, Members{Rank(0), Rank(-1)},
                                 Members{Rank(0), Rank(0)}, Members{Rank(1), Rank(2)}}) {
    Outbox outbox;
    state_.Ask(NextCall(1, 60), Self(0), AllGatherRequest{"name", "v", members}, &outbox);
    ASSERT_THAT(outbox.replies, SizeIs(1));
    EXPECT_EQ(outbox.replies[0].status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(outbox.replies[0].status.message(), HasSubstr("members: group: "));
  }
}

TEST_F(CoordinatorStateTest, WhoListsAllRanksMeetsWhoListsNone) {
  MakeWorld(2);
  Outbox outbox;
  state_.Ask(NextCall(1, 60), Self(0), AllGatherRequest{"name", "a", {Rank(0), Rank(1)}}, &outbox);
  state_.Ask(NextCall(1, 60), Self(1), AllGatherRequest{"name", "b"}, &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(2));
  EXPECT_THAT(*std::get<AllGatherResult>(outbox.replies[0].answer).values, ElementsAre("a", "b"));
}

TEST_F(CoordinatorStateTest, ARankThatLeavesEndsItsOwnGathersOnly) {
  MakeWorld(3);
  const std::vector<Rank> stay = {Rank(0), Rank(1)};
  Outbox outbox;
  state_.Ask(NextCall(1, 60), Self(0), AllGatherRequest{"ours", "a", stay}, &outbox);
  state_.Ask(NextCall(1, 60), Self(1), AllGatherRequest{"with rank 2", "b", {Rank(1), Rank(2)}},
             &outbox);
  ASSERT_TRUE(state_.Leave(Self(2), &outbox).ok());
  ASSERT_THAT(outbox.replies, SizeIs(1));
  EXPECT_THAT(outbox.replies[0].status.message(),
              AllOf(HasSubstr("with rank 2"), HasSubstr("rank 2 left the job")));

  state_.Ask(NextCall(2, 60), Self(1), AllGatherRequest{"ours", "b", stay}, &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(3));
  EXPECT_THAT(*std::get<AllGatherResult>(outbox.replies[1].answer).values, ElementsAre("a", "b"));
  state_.Ask(NextCall(3, 60), Self(0), AllGatherRequest{"all", "a"}, &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(4));
  EXPECT_EQ(outbox.replies[3].status.code(), absl::StatusCode::kAborted);
}

TEST_F(CoordinatorStateTest, StoreIsBoundedAndDeletingMakesRoom) {
  MakeWorld(1);
  const auto set = [&](int i) {
    Outbox outbox;
    state_.Ask(NextCall(1, 60), Self(0),
               KeyValueRequest{.keys = {std::to_string(i)},
                               .value = std::string(limits::kMaxValueBytes, 'v')},
               &outbox);
    return outbox.replies[0].status.code();
  };
  constexpr int kFull = limits::kMaxStoreBytes / limits::kMaxValueBytes - 1;
  for (int i = 0; i < kFull; ++i) ASSERT_EQ(set(i), absl::StatusCode::kOk);
  EXPECT_EQ(set(kFull), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(set(0), absl::StatusCode::kOk);
  Outbox outbox;
  state_.Ask(NextCall(1, 60), Self(0),
             KeyValueRequest{.kind = KeyValueRequest::Kind::kDelete, .keys = {"0"}}, &outbox);
  EXPECT_EQ(set(kFull), absl::StatusCode::kOk);
}

TEST_F(CoordinatorStateTest, UnknownOperationIsRefused) {
  MakeWorld(1);
  Outbox outbox;
  state_.Ask(NextCall(1, 60), Self(0),
             KeyValueRequest{.kind = static_cast<KeyValueRequest::Kind>(99), .keys = {"k"}},
             &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(1));
  EXPECT_EQ(outbox.replies[0].status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorStateTest, OnlyTheFirstReportOfARankIsPassedOn) {
  MakeWorld(2);
  Outbox outbox;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(state_.Report(Self(0), absl::InternalError("x"), &outbox).ok());
  }
  ASSERT_THAT(outbox.orders, SizeIs(1));
  EXPECT_EQ(outbox.orders[0].order.reason.message(), "job 'job': rank 0 reported: x");
}

TEST_F(CoordinatorStateTest, AReportOfNoFailureIsRefused) {
  MakeWorld(2);
  Outbox outbox;
  EXPECT_EQ(state_.Report(Self(0), absl::OkStatus(), &outbox).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CoordinatorStateTest, JobsAreBounded) {
  Outbox outbox;
  for (size_t i = 0; i <= limits::kMaxJobs; ++i) {
    JoinRequest request = MakeJoin(0, 2);
    request.job = std::to_string(i);
    state_.Join(NextCall(0, 5), request, &outbox);
  }
  ASSERT_THAT(outbox.replies, SizeIs(1));
  EXPECT_EQ(outbox.replies[0].status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CoordinatorStateTest, MatchingsAreAnsweredAtOnceAndWhateverHasBecomeOfOtherRanks) {
  MakeWorld(3);
  const SelectPeersRequest request{.members = {Rank(0), Rank(1)}};
  Outbox outbox;
  state_.Ask(NextCall(1, 60), Self(0), request, &outbox);
  state_.StreamBroke(Self(2), At(1), &outbox);
  state_.Ask(NextCall(1, 60), Self(1), request, &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(2));
  for (const Reply& reply : outbox.replies) {
    EXPECT_EQ(std::get<Matching>(reply.answer), (Matching{1, 0}));
  }
}

TEST_F(CoordinatorStateTest, WhoWaitsForAPeerIsToldOfALossAndNobodyWaitsForARankThatLeft) {
  MakeWorld(4);
  FindPeerRequest request{CommunicatorId(1), {Rank(0), Rank(1)}, 1};
  Outbox outbox;
  state_.Ask(NextCall(1, 60), Self(0), request, &outbox);
  EXPECT_THAT(outbox.replies, IsEmpty());
  EXPECT_EQ(state_.NextDeadline(), At(2));
  ASSERT_TRUE(state_.Leave(Self(1), &outbox).ok());
  ASSERT_THAT(outbox.replies, SizeIs(1));
  EXPECT_TRUE(outbox.replies[0].status.ok());
  EXPECT_EQ(std::get<PeerMatch>(outbox.replies[0].answer).peer, Rank(0));

  outbox = {};
  request = {CommunicatorId(2), {Rank(0), Rank(2)}, 1};
  state_.Ask(NextCall(1, 60), Self(0), request, &outbox);
  state_.StreamBroke(Self(3), At(1), &outbox);
  request.round = 2;
  state_.Ask(NextCall(1, 60), Self(0), request, &outbox);
  ASSERT_THAT(outbox.replies, SizeIs(2));
  for (const Reply& reply : outbox.replies) {
    EXPECT_EQ(reply.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(reply.status.message()), HasSubstr("rank 3 (pid 103) died"));
  }
}

}  // namespace
}  // namespace pelton
