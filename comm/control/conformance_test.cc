#include "comm/control/conformance_test.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "comm/control/key_value.h"
#include "comm/control/plan_check.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/plan/plan.h"

namespace pelton {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_P(ControlConformanceTest, JoinGivesEveryRankTheSameMembership) {
  constexpr int kWorld = 4;
  const Controls controls = UnjoinedWorld(kWorld);
  std::vector<absl::StatusOr<Membership>> joined(kWorld);
  OnEveryRank(kWorld, [&](int rank) {
    joined[rank] = controls[rank]->Join(MakeJoin(rank, kWorld), Late());
  });
  for (const auto& membership : joined) {
    ASSERT_TRUE(membership.ok()) << membership.status();
    EXPECT_EQ(membership->generation, joined[0]->generation);
    ASSERT_EQ(membership->members.size(), kWorld);
    for (int rank = 0; rank < kWorld; ++rank) {
      const Member& member = membership->members[rank];
      EXPECT_EQ(member.rank, Rank(rank));
      EXPECT_EQ(member.host, (HostIdentity{"boot", 7, 1000 + rank}));
    }
  }
}

TEST_P(ControlConformanceTest, JoinTimeOutNamesMissingRanksOnAllThatWait) {
  const auto statuses = JoinAll({MakeJoin(0, 4), MakeJoin(2, 4)}, absl::Milliseconds(300));
  for (size_t i = 0; i < statuses.size(); ++i) {
    EXPECT_EQ(statuses[i].code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(statuses[i]),
                MatchesRegex("rank " + std::to_string(2 * i) +
                             ": job 'job': 2 of 4 ranks joined within [0-9.]+m?s; missing: 1, 3"));
  }
  EXPECT_TRUE(fixture_->AwaitEmpty(Late()).ok());
}

TEST_P(ControlConformanceTest, JoinOfTwoProcessesWithOneRankFailsOnAll) {
  JoinRequest twin = MakeJoin(1, 4);
  twin.host.pid = 77;
  const auto statuses =
      JoinAll({MakeJoin(0, 4), MakeJoin(1, 4), twin, MakeJoin(2, 4), MakeJoin(3, 4)});
  for (const absl::Status& status : statuses) {
    // Should the world be whole before the twin comes, it alone is refused.
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
    EXPECT_THAT(Text(status), HasSubstr("rank 1"));
  }
  EXPECT_FALSE(statuses[1].ok() && statuses[2].ok());
}

TEST_P(ControlConformanceTest, JoinOfTwoProcessesWithOneRankFailsForLaterRanks) {
  JoinRequest twin = MakeJoin(1, 3);
  twin.host.pid = 77;
  for (const absl::Status& status : JoinAll({MakeJoin(1, 3), twin})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(Text(status), MatchesRegex("rank 1: job 'job': two processes joined as rank 1: "
                                           "pid (1001 and pid 77|77 and pid 1001)"));
  }
  const auto later = JoinAll({MakeJoin(0, 3), MakeJoin(2, 3)});
  EXPECT_EQ(later[0].code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(later[1].code(), absl::StatusCode::kAlreadyExists);
  // All have been told: the job may be started anew.
  EXPECT_EQ(JoinedWorld(2).size(), 2);
}

TEST_P(ControlConformanceTest, JoinWithAnotherWorldSizeFailsOnAll) {
  const auto statuses = JoinAll({MakeJoin(0, 2), MakeJoin(1, 3)});
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(status), HasSubstr("with world size 2"));
    EXPECT_THAT(Text(status), HasSubstr("with world size 3"));
    EXPECT_THAT(Text(status), HasSubstr("rank 0"));
    EXPECT_THAT(Text(status), HasSubstr("rank 1"));
  }
}

TEST_P(ControlConformanceTest, JoinWithAnotherProtocolVersionFailsOnAll) {
  JoinRequest newer = MakeJoin(1, 2);
  newer.protocol_version = kControlProtocolVersion + 1;
  for (const absl::Status& status : JoinAll({MakeJoin(0, 2), newer})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(status),
                HasSubstr(absl::StrCat("rank 1 speaks protocol version ", newer.protocol_version,
                                       ", the coordinator version ", kControlProtocolVersion)));
  }
}

TEST_P(ControlConformanceTest, JoinOfRunningJobIsRefusedWithoutDisturbingIt) {
  const Controls controls = JoinedWorld(2);
  const auto statuses = JoinAll({MakeJoin(1, 2)});
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Text(statuses[0]), HasSubstr("job 'job' is already running"));
  OnEveryRank(2, [&](int rank) {
    const absl::Status status = Barrier(*controls[rank], "still-here", Late());
    EXPECT_TRUE(status.ok()) << status;
  });
}

TEST_P(ControlConformanceTest, JoinRefusesMalformedRequestsByField) {
  const JoinRequest base = MakeJoin(0, 2);
  JoinRequest rank = base, negative = base, empty = base, huge = base, name = base, host = base;
  rank.rank = Rank(2);
  negative.rank = Rank(-1);
  empty.world_size = WorldSize(0);
  huge.world_size = WorldSize(limits::kMaxWorldSize + 1);
  name.job = "";
  host.host.boot_id = std::string(limits::kMaxNameBytes + 1, 'a');
  const auto statuses = JoinAll({rank, negative, empty, huge, name, host});
  const std::vector<std::string> texts = {
      "rank: is 2, must be 0 to 1",           "rank: is -1, must be 0 to 1",
      "world_size: is 0, must be 1 to 65536", "world_size: is 65537, must be 1 to 65536",
      "bytes of job: is 0, must be 1 to 256", "bytes of boot_id: is 257, must be 0 to 256"};
  for (size_t i = 0; i < statuses.size(); ++i) {
    EXPECT_EQ(statuses[i].code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(statuses[i]), HasSubstr(texts[i]));
  }
}

TEST_P(ControlConformanceTest, JobsOfOneCoordinatorDoNotMeet) {
  const Controls one = JoinedWorld(2, "one");
  const Controls two = JoinedWorld(2, "two");
  ASSERT_TRUE(KeyValueStore(one[0].get()).Set("key", "of one", Late()).ok());
  EXPECT_FALSE(*KeyValueStore(two[0].get()).Check({"key"}, Late()));
}

TEST_P(ControlConformanceTest, CallsNeedJoinAndEndWithLeave) {
  const Controls controls = UnjoinedWorld(1);
  KeyValueStore store(controls[0].get());
  EXPECT_EQ(store.NumKeys(Late()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(controls[0]->Leave(Late()).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(controls[0]->Join(MakeJoin(0, 1), Late()).ok());
  EXPECT_TRUE(store.NumKeys(Late()).ok());
  EXPECT_TRUE(controls[0]->Leave(Late()).ok());
  EXPECT_TRUE(controls[0]->Leave(Late()).ok());
  EXPECT_EQ(store.NumKeys(Late()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(ControlConformanceTest, StoreKeepsAndChangesValues) {
  const Controls controls = JoinedWorld(2);
  KeyValueStore a(controls[0].get()), b(controls[1].get());
  const std::string bytes("\0\xff\n", 3);
  ASSERT_TRUE(a.Set("key", bytes, Late()).ok());
  EXPECT_EQ(*b.Get("key", Late()), bytes);
  EXPECT_TRUE(*b.Check({"key"}, Late()));
  EXPECT_FALSE(*b.Check({"key", "none"}, Late()));
  EXPECT_EQ(*a.Add("count", 3, Late()), 3);
  EXPECT_EQ(*b.Add("count", -5, Late()), -2);
  EXPECT_EQ(*a.Get("count", Late()), "-2");
  EXPECT_EQ(*a.NumKeys(Late()), 2);
  EXPECT_TRUE(*a.Delete("key", Late()));
  EXPECT_FALSE(*a.Delete("key", Late()));
  EXPECT_EQ(*b.NumKeys(Late()), 1);
}

TEST_P(ControlConformanceTest, StoreComparesAndSets) {
  const Controls controls = JoinedWorld(1);
  KeyValueStore store(controls[0].get());
  EXPECT_EQ(store.CompareAndSet("k", "x", "y", Late()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(*store.CompareAndSet("k", "", "first", Late()), "first");
  EXPECT_EQ(*store.CompareAndSet("k", "other", "second", Late()), "first");
  EXPECT_EQ(*store.CompareAndSet("k", "first", "second", Late()), "second");
  EXPECT_EQ(*store.Get("k", Late()), "second");
}

TEST_P(ControlConformanceTest, StoreAppendsAlsoWhatIsThereAlready) {
  const Controls controls = JoinedWorld(1);
  KeyValueStore store(controls[0].get());
  for (const char* tail : {"ab", "ab", "", "c"}) {
    ASSERT_TRUE(store.Append("k", tail, Late()).ok());
  }
  EXPECT_EQ(*store.Get("k", Late()), "ababc");
}

TEST_P(ControlConformanceTest, StoreRefusesWhatItCannotDo) {
  const Controls controls = JoinedWorld(1);
  KeyValueStore store(controls[0].get());
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(store.Set("", "v", Late()).code(), invalid);
  EXPECT_EQ(store.Set(std::string(limits::kMaxKeyBytes + 1, 'k'), "v", Late()).code(), invalid);
  const absl::Status large = store.Set("k", std::string(limits::kMaxValueBytes + 1, 'v'), Late());
  EXPECT_EQ(large.code(), invalid);
  EXPECT_THAT(Text(large), HasSubstr("value: has 16777217 bytes, must have at most 16777216"));
  EXPECT_TRUE(store.Set("k", std::string(limits::kMaxValueBytes, 'v'), Late()).ok());
  EXPECT_EQ(store.Add("k", 1, Late()).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store.Set("n", "9223372036854775807", Late()).ok());
  EXPECT_EQ(store.Add("n", 1, Late()).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_P(ControlConformanceTest, GetAndWaitReturnWhenAnotherRankSetsTheKeys) {
  const Controls controls = JoinedWorld(3);
  OnEveryRank(3, [&](int rank) {
    KeyValueStore store(controls[rank].get());
    if (rank == 0) {
      EXPECT_EQ(*store.Get("b", Late()), "2");
      EXPECT_TRUE(store.Set("done", "", Late()).ok());
    } else if (rank == 1) {
      EXPECT_TRUE(store.Wait({"a", "b", "done"}, Late()).ok());
    } else {
      EXPECT_TRUE(store.Set("a", "1", Late()).ok());
      EXPECT_TRUE(store.Set("b", "2", Late()).ok());
    }
  });
}

TEST_P(ControlConformanceTest, GetTimeOutNamesTheKey) {
  const Controls controls = JoinedWorld(1);
  const auto got =
      KeyValueStore(controls[0].get()).Get("absent\n", absl::Now() + absl::Milliseconds(50));
  EXPECT_EQ(got.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Text(got.status()), HasSubstr("rank 0: key 'absent\\n' was not set within"));
}

TEST_P(ControlConformanceTest, AllGatherGivesValuesByRankAgainAndAgain) {
  constexpr int kWorld = 3;
  const Controls controls = JoinedWorld(kWorld);
  OnEveryRank(kWorld, [&](int rank) {
    for (int round = 0; round < 20; ++round) {
      const auto values =
          controls[rank]->AllGather("name", std::to_string(10 * round + rank), Late());
      ASSERT_TRUE(values.ok()) << values.status();
      EXPECT_THAT(*values, ElementsAre(std::to_string(10 * round), std::to_string(10 * round + 1),
                                       std::to_string(10 * round + 2)));
    }
  });
}

TEST_P(ControlConformanceTest, AllGatherAmongSomeGivesValuesInTheirOrder) {
  const Controls controls = JoinedWorld(4);
  OnEveryRank(4, [&](int rank) {
    if (rank == 1) return;  // is not waited for
    const std::vector<Rank> members = {Rank(3), Rank(0), Rank(2)};
    for (int round = 0; round < 20; ++round) {
      const auto values = controls[rank]->AllGatherAmong(
          {"name", std::to_string(10 * round + rank), members}, Late());
      ASSERT_TRUE(values.ok()) << values.status();
      EXPECT_THAT(*values, ElementsAre(std::to_string(10 * round + 3), std::to_string(10 * round),
                                       std::to_string(10 * round + 2)));
    }
  });
}

// Ranks 0 and 1 are in both and call in different orders.
TEST_P(ControlConformanceTest, AllGathersOfDifferentMembersAreIndependent) {
  const Controls controls = JoinedWorld(3);
  std::vector<std::string> seen(3);
  OnEveryRank(3, [&](int rank) {
    std::thread pair([&] {
      if (rank == 2) return;
      const auto values =
          controls[rank]->AllGatherAmong({"name", "pair", {Rank(0), Rank(1)}}, Late());
      EXPECT_TRUE(values.ok()) << values.status();
      if (values.ok()) {
        EXPECT_THAT(*values, ElementsAre("pair", "pair"));
      }
    });
    const auto values = controls[rank]->AllGather("name", "all", Late());
    EXPECT_TRUE(values.ok()) << values.status();
    if (values.ok()) {
      EXPECT_THAT(*values, ElementsAre("all", "all", "all"));
    }
    pair.join();
  });
}

TEST_P(ControlConformanceTest, AllGatherAmongSomeTimesOutNamingOnlyThem) {
  const Controls controls = JoinedWorld(4);
  const absl::Status status =
      controls[1]
          ->AllGatherAmong({"name", "", {Rank(3), Rank(1)}}, absl::Now() + absl::Milliseconds(50))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Text(status), HasSubstr("1 of 2 ranks arrived"));
  EXPECT_THAT(Text(status), EndsWith("missing: 3"));
}

TEST_P(ControlConformanceTest, BarrierTimeOutNamesMissingRanksOnAllThatWait) {
  const Controls controls = JoinedWorld(4);
  OnEveryRank(2, [&](int rank) {
    const absl::Status status =
        Barrier(*controls[rank], "step", absl::Now() + absl::Milliseconds(300));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(status), HasSubstr("all-gather 'barrier/step': 2 of 4 ranks arrived"));
    EXPECT_THAT(Text(status), HasSubstr("missing: 2, 3"));
  });
}

TEST_P(ControlConformanceTest, LossIsOrderedToEverySurvivorAndEndsItsWaits) {
  Controls controls = JoinedWorld(4);
  OrderLog zero(controls[0].get()), one(controls[1].get()), three(controls[3].get());
  controls[2]->SetRound(Round(5));
  OnEveryRank(4, [&](int rank) {
    if (rank == 0 || rank == 1) {
      const absl::Status status = Barrier(*controls[rank], "never", Late());
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(Text(status), HasSubstr("rank 2 (pid 1002) died"));
    } else if (rank == 3) {
      const auto got = KeyValueStore(controls[3].get()).Get("never", Late());
      EXPECT_EQ(got.status().code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(Text(got.status()), HasSubstr("rank 2 (pid 1002) died"));
    } else {
      controls[2].reset();
    }
  });
  for (OrderLog* log : {&zero, &one, &three}) {
    const Order order = log->Await(0);
    EXPECT_EQ(order.kind, Order::Kind::kAbort);
    EXPECT_EQ(order.culprit, Rank(2));
    EXPECT_EQ(order.reason.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Text(order.reason), HasSubstr("its connection to the coordinator broke"));
  }
}

TEST_P(ControlConformanceTest, ReportIsOrderedToAllOthers) {
  const Controls controls = JoinedWorld(3);
  OrderLog zero(controls[0].get()), one(controls[1].get()), two(controls[2].get());
  ASSERT_TRUE(controls[1]->Report(absl::DataLossError("bucket 3"), Late()).ok());
  for (OrderLog* log : {&zero, &two}) {
    const Order order = log->Await(0);
    EXPECT_EQ(order.kind, Order::Kind::kAbort);
    EXPECT_EQ(order.culprit, Rank(1));
    EXPECT_EQ(order.reason.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(Text(order.reason), HasSubstr("rank 1 reported: bucket 3"));
  }
  EXPECT_EQ(one.size(), 0);
  const absl::Status status = Barrier(*controls[0], "after", Late());
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Text(status), HasSubstr("rank 1 reported: bucket 3"));
}

TEST_P(ControlConformanceTest, LeaveIsOrderedToThoseWhoStayAndLeavesNothing) {
  const Controls controls = JoinedWorld(2);
  OrderLog zero(controls[0].get()), one(controls[1].get());
  ASSERT_TRUE(KeyValueStore(controls[0].get()).Set("key", "value", Late()).ok());
  ASSERT_TRUE(controls[1]->Leave(Late()).ok());
  const Order order = zero.Await(0);
  EXPECT_EQ(order.kind, Order::Kind::kPeerLeft);
  EXPECT_EQ(order.culprit, Rank(1));
  const absl::Status status = Barrier(*controls[0], "alone", Late());
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Text(status), HasSubstr("rank 1 left the job"));
  ASSERT_TRUE(controls[0]->Leave(Late()).ok());
  EXPECT_EQ(zero.size(), 1);
  EXPECT_EQ(one.size(), 0);
  ASSERT_TRUE(fixture_->AwaitEmpty(Late()).ok());
  const Controls again = JoinedWorld(1);
  EXPECT_EQ(*KeyValueStore(again[0].get()).NumKeys(Late()), 0);
}

TEST_P(ControlConformanceTest, GenerationsOfAJobGrow) {
  Generation last;
  for (int i = 0; i < 3; ++i) {
    const std::unique_ptr<Control> control = fixture_->MakeControl();
    const auto membership = control->Join(MakeJoin(0, 1), Late());
    ASSERT_TRUE(membership.ok()) << membership.status();
    EXPECT_GT(membership->generation, last);
    last = membership->generation;
    ASSERT_TRUE(control->Leave(Late()).ok());
  }
}

TEST_P(ControlConformanceTest, OrdersThatCameBeforeTheCallbackAreNotLost) {
  const Controls controls = JoinedWorld(3);
  ASSERT_TRUE(controls[2]->Report(absl::InternalError("first"), Late()).ok());
  ASSERT_TRUE(controls[1]->Report(absl::InternalError("second"), Late()).ok());
  OrderLog zero(controls[0].get());
  EXPECT_THAT(Text(zero.Await(0).reason), HasSubstr("first"));
  EXPECT_THAT(Text(zero.Await(1).reason), HasSubstr("second"));
}

TEST_P(ControlConformanceTest, EqualPlansPassTheCheck) {
  const Controls controls = JoinedWorld(3);
  OnEveryRank(3, [&](int rank) {
    const PlanSummary plan{.name = "model",
                           .version = PlanVersion(1),
                           .hash = 42,
                           .entries = {"w float32 [2]", "b float32 [1]"}};
    const absl::Status status = CheckPlan(*controls[rank], Rank(rank), plan, Late());
    EXPECT_TRUE(status.ok()) << status;
  });
}

// Ranks 0 and 2 disagree, rank 1 holds no such plan.
TEST_P(ControlConformanceTest, PlansOfAGroupAreComparedAmongItsMembers) {
  const Controls controls = JoinedWorld(3);
  OnEveryRank(3, [&](int rank) {
    if (rank == 1) return;
    const PlanSummary plan{.name = "model",
                           .members = {Rank(2), Rank(0)},
                           .version = PlanVersion(1),
                           .hash = static_cast<uint64_t>(rank),
                           .entries = {rank == 0 ? "w" : "v"}};
    const absl::Status status = CheckPlan(*controls[rank], Rank(rank), plan, Late());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(status), HasSubstr("rank 2 has hash 0000000000000002; rank 0 has hash"));
    EXPECT_THAT(Text(status), EndsWith("entry 0: 'v' on rank 2, 'w' on rank 0"));
  });
}

TEST_P(ControlConformanceTest, PlansThatDifferAreNamedOnEveryRank) {
  constexpr int kWorld = 3;
  const Controls controls = JoinedWorld(kWorld);
  std::vector<absl::Status> statuses(kWorld);
  OnEveryRank(kWorld, [&](int rank) {
    PlanSummary plan{.name = "model",
                     .version = PlanVersion(1),
                     .hash = 42,
                     .entries = {"w float32 [2]", "b float32 [1]"}};
    if (rank == 1) {
      plan.hash = 43;
      plan.entries[1] = "b float16 [1]";
    }
    statuses[rank] = CheckPlan(*controls[rank], Rank(rank), plan, Late());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Text(status),
              "plan 'model' of version 1 differs between ranks: rank 0, 2 has hash "
              "000000000000002a; rank 1 has hash 000000000000002b; the first difference is entry "
              "1: 'b float32 [1]' on rank 0, 'b float16 [1]' on rank 1");
  }
}

// As where ranks give one algorithm unlike graphs.
TEST_P(ControlConformanceTest, LongEntriesAreShownFromTheWordThatDiffers) {
  const Controls controls = JoinedWorld(2);
  OnEveryRank(2, [&](int rank) {
    std::string edges = "graph.edges=";
    for (int i = 0; i < 50; ++i) absl::StrAppend(&edges, i, ">", i + 1, ":0.5 ");
    absl::StrAppend(&edges, rank == 0 ? "50>51:0.5" : "50>51:0.75", " 51>52:0.5)");
    const PlanSummary plan{.name = "model",
                           .version = PlanVersion(1),
                           .hash = static_cast<uint64_t>(rank),
                           .entries = {edges}};
    EXPECT_THAT(Text(CheckPlan(*controls[rank], Rank(rank), plan, Late())),
                EndsWith("entry 0: ... '50>51:0.5 51>52:0.5)' on rank 0, ... '50>51:0.75 "
                         "51>52:0.5)' on rank 1"));
  });
}

TEST_P(ControlConformanceTest, SelectPeersGivesEveryMemberTheSameMatching) {
  constexpr int kWorld = 4;
  const Controls controls = JoinedWorld(kWorld);
  for (PeerPolicy policy : {PeerPolicy::kRandomMatching, PeerPolicy::kLatencyAware}) {
    for (uint64_t step = 0; step < 5; ++step) {
      const SelectPeersRequest request{
          CommunicatorId(7), {Rank(3), Rank(0), Rank(2)}, policy, step};
      std::vector<absl::StatusOr<Matching>> matchings(kWorld);
      OnEveryRank(kWorld, [&](int rank) {
        matchings[rank] = controls[rank]->SelectPeers(request, Late());
      });
      EXPECT_THAT(Text(matchings[1].status()), HasSubstr("rank 1: members: "));
      ASSERT_TRUE(matchings[0].ok()) << matchings[0].status();
      ASSERT_EQ(matchings[0]->size(), request.members.size());
      EXPECT_EQ(*matchings[2], *matchings[0]);
      EXPECT_EQ(*matchings[3], *matchings[0]);
    }
  }
}

TEST_P(ControlConformanceTest, SelectPeersRefusesStepsThatAreLongOver) {
  const Controls controls = JoinedWorld(1);
  for (uint64_t step = 10; step < 40; ++step) {
    EXPECT_TRUE(controls[0]->SelectPeers({.members = {Rank(0)}, .step = step}, Late()).ok());
  }
  EXPECT_EQ(controls[0]->SelectPeers({.members = {Rank(0)}, .step = 10}, Late()).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST_P(ControlConformanceTest, FindPeerPairsWhoAsksAndTellsBothTheSame) {
  const Controls controls = JoinedWorld(2);
  int pairs = 0;
  for (uint64_t round = 1; round < 20; ++round) {
    std::vector<absl::StatusOr<PeerMatch>> first(2);
    std::vector<absl::StatusOr<PeerMatch>> again(2);
    OnEveryRank(2, [&](int rank) {
      // The two need not be in the same round.
      const FindPeerRequest request{CommunicatorId(7), {Rank(1), Rank(0)}, round * (rank + 1)};
      first[rank] = controls[rank]->FindPeer(request, Late());
      again[rank] = controls[rank]->FindPeer(request, Late());
    });
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(first[rank].ok()) << first[rank].status();
      ASSERT_TRUE(again[rank].ok()) << again[rank].status();
      EXPECT_EQ(again[rank]->peer, first[rank]->peer);
      EXPECT_EQ(again[rank]->number, first[rank]->number);
    }
    // Their patience is short soon: one may have found nobody.
    if (first[0]->number != first[1]->number) continue;
    ++pairs;
    EXPECT_EQ(first[0]->peer, Rank(0)) << "the place of rank 1";
    EXPECT_EQ(first[1]->peer, Rank(1)) << "the place of rank 0";
  }
  EXPECT_GT(pairs, 0);
}

TEST_P(ControlConformanceTest, FindPeerLetsARankGoOnAloneInTime) {
  const Controls controls = JoinedWorld(2);
  FindPeerRequest request{CommunicatorId(7), {Rank(1), Rank(0)}, 1};
  const absl::StatusOr<PeerMatch> match =
      controls[0]->FindPeer(request, Clock::Real().Now() + absl::Milliseconds(500));
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->peer, Rank(1)) << "its own place";
  request.members = {Rank(1)};
  EXPECT_THAT(Text(controls[0]->FindPeer(request, Late()).status()), HasSubstr("members: "));
}

}  // namespace
}  // namespace pelton
