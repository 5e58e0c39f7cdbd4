// Conformance of refusals, mismatches, aborts and deadlines.
#include <functional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/conformance/test_world.h"
#include "core/base/limits.h"
#include "gmock/gmock.h"

namespace pelton::conformance {
namespace {

using ::testing::HasSubstr;

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

// An allreduce of 8 float32 at `memory`.
Operation PlainOperation(std::byte* memory) {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.count = 8;
  operation.peer = 0;
  operation.set_source(Locate(memory, 8 * 4));
  operation.set_target(Locate(memory, 8 * 4));
  return operation;
}

absl::Status StatusOf(Communicator& communicator, const absl::StatusOr<Completion>& completion) {
  if (!completion.ok()) return completion.status();
  return Await(communicator, *completion, FarDeadline());
}

// "count is " of "count is 8 on rank": what a text that compares other ranks has, too.
std::string FieldOf(const std::string& text) { return text.substr(0, text.find(" is ") + 4); }

// Rank 1 of three launches something else than the others: all fail, and then all works again, if
// that is promised.
void ExpectMismatch(TransportFixtureFactory factory, const std::string& text,
                    const std::function<void(Operation&)>& common,
                    const std::function<void(Operation&)>& differ) {
  TestWorld world(factory, 3);
  const bool survives = world.promises().survives_disagreement;
  world.Run([&](Communicator& communicator) {
    RankMemory& memory = world.memory(communicator.rank());
    Operation operation = PlainOperation(memory.region.Allocate(4096, 0));
    common(operation);
    if (communicator.rank() == Rank(1)) differ(operation);
    HostStream stream;
    const auto completion = communicator.Launch(operation, stream);
    if (survives) {
      ASSERT_TRUE(completion.ok()) << completion.status();
    }
    // Without that promise a peer may have aborted before this rank came, or after its part was
    // done: then the next operation says so.
    absl::Status status = StatusOf(communicator, completion);
    if (!survives && status.ok()) status = StatusOf(communicator, Barrier(communicator));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(TextOf(status), HasSubstr(survives ? text : FieldOf(text)));
    EXPECT_THAT(TextOf(status), HasSubstr("rank 1"));
    if (!survives) {
      EXPECT_FALSE(StatusOf(communicator, Barrier(communicator)).ok());
    }
    memory.region.Reset();
  });
  if (survives) world.ExpectUsable();
}

TEST_P(TransportConformanceTest, CountsThatDifferFailOnAllRanks) {
  ExpectMismatch(
      GetParam(), "count is 8 on rank", [](Operation&) {},
      [](Operation& operation) { operation.count = 7; });
}
TEST_P(TransportConformanceTest, DTypesThatDifferFailOnAllRanks) {
  ExpectMismatch(
      GetParam(), "dtype is float32 on rank", [](Operation&) {},
      [](Operation& operation) { operation.dtype = DType::kInt32; });
}
TEST_P(TransportConformanceTest, OpsThatDifferFailOnAllRanks) {
  ExpectMismatch(
      GetParam(), "op is SUM on rank", [](Operation&) {},
      [](Operation& operation) { operation.reduce_op = ReduceOp::kMax; });
}
TEST_P(TransportConformanceTest, RootsThatDifferFailOnAllRanks) {
  ExpectMismatch(
      GetParam(), "root is 0 on rank",
      [](Operation& operation) { operation.kind = OperationKind::kBroadcast; },
      [](Operation& operation) { operation.peer = 2; });
}
TEST_P(TransportConformanceTest, KindsThatDifferFailOnAllRanks) {
  ExpectMismatch(
      GetParam(), "the operation is allreduce on rank", [](Operation&) {},
      [](Operation& operation) { operation.kind = OperationKind::kBarrier; });
}
TEST_P(TransportConformanceTest, BucketsThatDifferFailOnAllRanks) {
  ExpectMismatch(
      GetParam(), "bucket is 4 on rank",
      [](Operation& operation) { operation.bucket = BucketId(4); },
      [](Operation& operation) { operation.bucket = BucketId(5); });
}

// What a single rank is refused at once, with the text that names it; nothing is sent.
TEST_P(TransportConformanceTest, LaunchRefusesWhatIsOutOfRange) {
  TestWorld world(GetParam(), 2);
  world.Run([&](Communicator& communicator) {
    RankMemory& memory = world.memory(communicator.rank());
    const Operation good = PlainOperation(memory.region.Allocate(4096, 0));
    const uint64_t region_bytes = memory.region.region()->size_bytes();
    auto expect_refused = [&](const std::function<void(Operation&)>& spoil,
                              const std::string& text) {
      Operation operation = good;
      spoil(operation);
      HostStream stream;
      const absl::Status status = communicator.Launch(operation, stream).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text << ": " << status;
      EXPECT_THAT(TextOf(status), HasSubstr(text));
    };
    using O = Operation;
    expect_refused([](O& o) { o.kind = OperationKind::kBroadcast, o.peer = 2; }, "2");
    expect_refused([](O& o) { o.kind = OperationKind::kBroadcast, o.peer = -1; }, "-1");
    expect_refused([](O& o) { o.kind = OperationKind::kSend, o.peer = 7; }, "7");
    expect_refused([](O& o) { o.kind = OperationKind::kRecv, o.peer = -3; }, "-3");
    expect_refused([](O& o) { o.source_region = RegionId(987654); }, "987654");
    expect_refused([=](O& o) { o.target_offset = region_bytes - 28; },
                   std::to_string(region_bytes - 28));
    expect_refused([](O& o) { o.count = uint64_t{1} << 62; }, std::to_string(uint64_t{1} << 62));
    expect_refused([](O& o) { o.dtype = static_cast<DType>(40); }, "40");
    expect_refused([](O& o) { o.reduce_op = ReduceOp::kBitAnd; }, "float32");
    expect_refused([](O& o) { o.kind = OperationKind::kAllToAllV; }, "alltoall_v");
    expect_refused([](O& o) { o.kind = OperationKind::kNeighborAllReduce; }, "neighbor_allreduce");
    expect_refused([](O& o) { o.kind = static_cast<OperationKind>(99); }, "99");
    memory.region.Reset();
  });
  world.ExpectUsable();
}

TEST_P(TransportConformanceTest, OperationsInFlightAreBounded) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) return;
    HostStream stream;
    Completion last;
    for (size_t i = 0; i < limits::kMaxOperationsInFlight; ++i) {
      const auto completion = communicator.Launch(Operation{}, stream);
      ASSERT_TRUE(completion.ok()) << completion.status();
      last = *completion;
    }
    EXPECT_EQ(communicator.Launch(Operation{}, stream).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(communicator.Query(last).done);
  });
  world.Run([](Communicator& communicator) {
    if (communicator.rank() == Rank(0)) return;
    for (size_t i = 0; i < limits::kMaxOperationsInFlight; ++i) {
      const auto completion = Barrier(communicator);
      ASSERT_TRUE(completion.ok()) << completion.status();
    }
  });
  world.Run([](Communicator& communicator) {
    const Completion last{limits::kMaxOperationsInFlight};
    EXPECT_EQ(Await(communicator, last, FarDeadline()), absl::OkStatus());
    EXPECT_TRUE(communicator.Query(Completion{1}).done);
  });
  world.ExpectUsable();
}

// Rank 2 never launches: the others name it, and nobody else.
TEST_P(TransportConformanceTest, ADeadlineNamesTheRankThatIsMissing) {
  TestWorld world(GetParam(), 4);
  const bool exactly = world.promises().names_exactly_who_is_missing;
  world.Run([exactly](Communicator& communicator) {
    if (communicator.rank() == Rank(2)) return;
    float value = 1;
    const Tensor tensor{&value, 1, DType::kFloat32};
    const auto completion = AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
    ASSERT_TRUE(completion.ok()) << completion.status();
    const absl::Status status =
        Await(communicator, *completion, absl::Now() + absl::Milliseconds(300));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    // The first whose deadline passes tells the others.
    const std::string text = TextOf(status);
    EXPECT_THAT(text, HasSubstr("waiting for rank(s) "));
    const std::string named = text.substr(text.rfind(')') + 1);
    EXPECT_THAT(named, exactly ? testing::Matcher<std::string>(" 2") : HasSubstr(" 2"));
  });
}

TEST_P(TransportConformanceTest, MissingNamesThePartnerOfAReceive) {
  TestWorld world(GetParam(), 3);
  world.Run([](Communicator& communicator) {
    if (communicator.rank() != Rank(0)) return;
    EXPECT_THAT(communicator.Missing(), testing::IsEmpty());
    float value = 0;
    const auto completion = Recv(communicator, {&value, 1, DType::kFloat32}, Rank(2));
    ASSERT_TRUE(completion.ok()) << completion.status();
    communicator.Progress();
    EXPECT_THAT(communicator.Missing(), testing::ElementsAre(Rank(2)));
    communicator.Abort(absl::CancelledError("enough"));
  });
}

// Ranks 1 and 2 sleep in a collective when rank 0 aborts.
TEST_P(TransportConformanceTest, AnAbortWakesAllRanksAndGivesItsReason) {
  TestWorld world(GetParam(), 3);
  world.Run([](Communicator& communicator) {
    if (communicator.rank() == Rank(0)) {
      // Parks until the peers had time to park, too; a late one makes the test easier, not wrong.
      communicator.Park(absl::Now() + absl::Milliseconds(50));
      communicator.Abort(absl::InternalError("the disk is full"));
      const absl::Status again = Barrier(communicator).status();
      EXPECT_EQ(again, absl::InternalError("the disk is full"));
      return;
    }
    const auto completion = Barrier(communicator);
    const absl::Status status =
        completion.ok() ? Await(communicator, *completion, FarDeadline()) : completion.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(TextOf(status), "rank 0 aborted: the disk is full");
    EXPECT_EQ(Barrier(communicator).status(), status);
  });
}

// `begin`: whose length decides whether a letter lies across the place of the cut.
void CheckCut(TransportFixtureFactory transport, const std::string& begin) {
  TestWorld world(transport, 2);
  world.Run([&begin](Communicator& communicator) {
    if (communicator.rank() == Rank(0)) {
      std::string text = begin;
      for (int i = 0; i < 5000; ++i) text += "\xd0\xb6";  // a letter of two bytes
      communicator.Abort(absl::InternalError(text));
      return;
    }
    const std::string text = TextOf(StatusOf(communicator, Barrier(communicator)));
    EXPECT_THAT(text, HasSubstr("rank 0 aborted: " + begin));
    EXPECT_EQ((text.size() - text.find(begin) - begin.size()) % 2, 0u) << "half a letter";
  });
}

TEST_P(TransportConformanceTest, ALongReasonIsCutBetweenLetters) {
  for (const char* begin : {"in stage x", "in stage xy"}) CheckCut(GetParam(), begin);
}

// Who launches takes the first for want of room, and would try again for ever; who looks for a
// message takes the others for that there is none.
TEST_P(TransportConformanceTest, AnEndIsNoAnswerOfACommunicatorThatGoesOn) {
  for (const absl::Status& reason :
       {absl::ResourceExhaustedError("no memory"), absl::NotFoundError("no memory"),
        absl::UnimplementedError("no memory")}) {
    TestWorld world(GetParam(), 2);
    world.Run([&reason](Communicator& communicator) {
      if (communicator.rank() == Rank(0)) communicator.Abort(reason);
      const absl::Status end = StatusOf(communicator, Barrier(communicator));
      EXPECT_EQ(end.code(), absl::StatusCode::kAborted) << end;
      EXPECT_THAT(TextOf(end), HasSubstr("no memory"));
      EXPECT_EQ(Barrier(communicator).status(), end);
    });
  }
}

TEST_P(TransportConformanceTest, TheFirstReasonStays) {
  TestWorld world(GetParam(), 1);
  Communicator& communicator = world.communicator(Rank(0));
  communicator.Abort(absl::InternalError("first"));
  communicator.Abort(absl::InternalError("second"));
  EXPECT_EQ(Barrier(communicator).status(), absl::InternalError("first"));
}

TEST_P(TransportConformanceTest, AnAbortFailsEveryOperationInFlight) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) return;
    float value = 0;
    const Tensor tensor{&value, 1, DType::kFloat32};
    const auto collective = AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
    float other = 0;
    const auto recv = Recv(communicator, {&other, 1, DType::kFloat32}, Rank(1));
    ASSERT_TRUE(collective.ok() && recv.ok());
    communicator.Abort(absl::CancelledError("stop"));
    for (Completion completion : {*collective, *recv}) {
      EXPECT_TRUE(communicator.Query(completion).done);
      EXPECT_EQ(communicator.Query(completion).status, absl::CancelledError("stop"));
    }
  });
}

TEST_P(TransportConformanceTest, ATransportAbortsAllItsCommunicators) {
  TestWorld world(GetParam(), 2);
  world.RunTransports([&](Transport& transport, Rank rank) {
    Communicator& communicator = world.communicator(rank);
    if (rank == Rank(1)) {
      transport.Abort(absl::UnavailableError("rank 0 is dead"));
      EXPECT_EQ(Barrier(communicator).status(), absl::UnavailableError("rank 0 is dead"));
      return;
    }
    const auto completion = Barrier(communicator);
    const absl::Status status =
        completion.ok() ? Await(communicator, *completion, FarDeadline()) : completion.status();
    EXPECT_EQ(status, absl::UnavailableError("rank 1 aborted: rank 0 is dead"));
  });
}

TEST_P(TransportConformanceTest, OpenRefusesARankOutsideTheGroup) {
  TestWorld world(GetParam(), 2);
  world.RunTransports([](Transport& transport, Rank rank) {
    if (rank == Rank(0)) return;
    const Group group{{Rank(0)}, Generation(1)};
    EXPECT_EQ(transport.Open(CommunicatorId(7), group, FarDeadline()).status().code(),
              absl::StatusCode::kInvalidArgument);
  });
}

TEST_P(TransportConformanceTest, OpenNamesTheRanksThatDoNotCome) {
  TestWorld world(GetParam(), 3);
  world.RunTransports([](Transport& transport, Rank rank) {
    if (rank == Rank(1)) return;
    const absl::Status status = transport
                                    .Open(CommunicatorId(8), Group::World(WorldSize(3)),
                                          absl::Now() + absl::Milliseconds(300))
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(TextOf(status), HasSubstr("1"));
  });
}

TEST_P(TransportConformanceTest, AnOldOrUnknownCompletionIsAnError) {
  TestWorld world(GetParam(), 1);
  Communicator& communicator = world.communicator(Rank(0));
  for (uint64_t ticket : {uint64_t{0}, uint64_t{1}, uint64_t{12345}}) {
    const auto state = communicator.Query(Completion{ticket});
    EXPECT_TRUE(state.done);
    // Not InvalidArgument, which is how the ranks' disagreement is known, and which goes on.
    EXPECT_EQ(state.status.code(), absl::StatusCode::kOutOfRange) << ticket;
  }
}

}  // namespace
}  // namespace pelton::conformance
