// The coordinator's actor without gRPC: what reports and cancels in any order, and over many seeds,
// is answered once and ended once, and never touched afterwards.
#include "comm/control/coordinator_actor.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr absl::Duration kSilence = absl::Seconds(10);
constexpr int64_t kMinuteUs = 60'000'000;
using Feeding = std::function<void(CoordinatorState&, const Call&, Outbox*)>;

// A call whose reactions the test chooses. Threads: the test's. Owns: its room.
class FakeCall final : public ServedCall {
 public:
  FakeCall(uint64_t number, const ActorRef<CoordinatorActor>& actor, Feeding feed)
      : number_(number),
        feed_(std::move(feed)),
        begin_(*actor.Reserve()),
        cancel_(*actor.Reserve()) {}

  void Begin(int64_t timeout_us = kMinuteUs) {
    CoordinatorRoom room = *std::exchange(begin_, std::nullopt);
    room.Send(BeginCall{number_, OwedCall(this), "job", timeout_us}).IgnoreError();
  }
  // The two halves of a cancellation, between which anything may happen.
  void SetCancelled() { cancelled_ = true; }
  void SendCancel() {
    cancel_->Send(CancelCall{number_}).IgnoreError();
    cancel_.reset();
  }
  void Cancel() {
    SetCancelled();
    SendCancel();
  }
  bool begun() const { return !begin_.has_value(); }
  bool can_cancel() const { return cancel_.has_value(); }
  bool answered() const { return reply_.has_value(); }
  const Reply& reply() const { return *reply_; }
  absl::StatusCode code() const { return reply_->status.code(); }

  void Feed(CoordinatorState& state, const Call& call, Outbox* outbox) override {
    EXPECT_FALSE(answered()) << "fed after its answer";
    feed_(state, call, outbox);
  }
  void Answer(Reply reply) override {
    EXPECT_FALSE(answered()) << "answered twice";
    reply_ = std::move(reply);
  }
  bool is_cancelled() const override {
    EXPECT_FALSE(answered()) << "asked after its answer";
    return cancelled_;
  }

 private:
  const uint64_t number_;
  const Feeding feed_;
  std::optional<CoordinatorRoom> begin_;
  std::optional<CoordinatorRoom> cancel_;
  bool cancelled_ = false;
  std::optional<Reply> reply_;
};

// A stream whose reactions the test chooses. Threads: the test's. Owns: its room.
class FakeStream final : public ServedStream {
 public:
  FakeStream(uint64_t number, const ActorRef<CoordinatorActor>& actor)
      : number_(number), break_(*actor.Reserve()) {
    CoordinatorRoom room = *actor.Reserve();
    room.Send(BeginStream{number, OwedStream(this)}).IgnoreError();
  }

  bool reading() const { return read_.has_value(); }
  bool writing() const { return write_.has_value(); }
  bool can_break() const { return break_.has_value(); }
  bool ended() const { return end_.has_value(); }
  const absl::Status& end() const { return *end_; }
  const std::vector<proto::Order>& orders() const { return orders_; }
  int Count(proto::Order::Kind kind) const {
    return static_cast<int>(std::count_if(orders_.begin(), orders_.end(),
                                          [&](const auto& order) { return order.kind() == kind; }));
  }

  void Beat(const Caller& caller) {
    CoordinatorRoom room = *std::exchange(read_, std::nullopt);
    room.Send(HeartbeatCame{number_, caller, {}, ++beats_}).IgnoreError();
  }
  void Written(bool ok = true) {
    CoordinatorRoom room = *std::exchange(write_, std::nullopt);
    room.Send(OrderWritten{number_, ok}).IgnoreError();
  }
  void Break() {
    break_->Send(StreamBroke{number_}).IgnoreError();
    break_.reset();
  }
  // From now on an order is reported as written before Write returns, as gRPC may do.
  void WriteAtOnce() {
    at_once_ = true;
    if (writing()) Written();
  }

  void Read(CoordinatorRoom room) override {
    EXPECT_FALSE(ended()) << "read after its end";
    EXPECT_FALSE(reading());
    read_ = std::move(room);
  }
  void Write(proto::Order order, CoordinatorRoom room) override {
    EXPECT_FALSE(ended()) << "written to after its end";
    EXPECT_FALSE(writing()) << "two orders at a time";
    orders_.push_back(std::move(order));
    write_ = std::move(room);
    if (at_once_) Written();
  }
  void End(const absl::Status& status) override {
    EXPECT_FALSE(ended()) << "ended twice";
    EXPECT_FALSE(writing()) << "ended while an order is being written";
    end_ = status;
    read_.reset();
  }

 private:
  const uint64_t number_;
  bool at_once_ = false;
  uint64_t beats_ = 0;
  std::vector<proto::Order> orders_;
  std::optional<CoordinatorRoom> break_;
  std::optional<CoordinatorRoom> read_;
  std::optional<CoordinatorRoom> write_;
  std::optional<absl::Status> end_;
};

// One coordinator and all that was ever begun at it. Threads: the test's. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed, size_t mailbox = 4096)
      : sim_(seed),
        actor_(Spawn<CoordinatorActor>(sim_, {.mailbox_capacity = mailbox}, kSilence)),
        stop_(*actor_.Reserve()) {}
  // By force, where a test has not ended it: before what it serves.
  ~World() { sim_.Shutdown(sim_.Now()).IgnoreError(); }

  FakeCall& NewCall(Feeding feed) {
    return *calls_.emplace_back(std::make_unique<FakeCall>(++last_, actor_, std::move(feed)));
  }
  FakeCall& NewJoin(int rank, int world_size) {
    const JoinRequest request{
        .job = "job", .rank = Rank(rank), .world_size = WorldSize(world_size), .host = {}};
    return NewCall([request](CoordinatorState& state, const Call& call, Outbox* outbox) {
      state.Join(call, request, outbox);
    });
  }
  FakeCall& NewGather(const Caller& caller, const std::string& name) {
    return NewCall([=](CoordinatorState& state, const Call& call, Outbox* outbox) {
      state.Ask(call, caller, AllGatherRequest{.name = name, .value = "v"}, outbox);
    });
  }
  FakeCall& NewLeave(const Caller& caller) {
    return NewCall([caller](CoordinatorState& state, const Call& call, Outbox* outbox) {
      outbox->replies.push_back({.call = call.id, .status = state.Leave(caller, outbox)});
    });
  }
  FakeStream& NewStream() {
    return *streams_.emplace_back(std::make_unique<FakeStream>(++last_, actor_));
  }
  // A whole world of ranks that have joined.
  std::vector<Caller> JoinAll(int world_size) {
    std::vector<FakeCall*> joins;
    for (int rank = 0; rank < world_size; ++rank) joins.push_back(&NewJoin(rank, world_size));
    for (FakeCall* join : joins) join->Begin();
    Settle();
    std::vector<Caller> callers;
    for (int rank = 0; rank < world_size; ++rank) {
      callers.push_back({"job", Rank(rank), joins[rank]->reply().membership->generation});
    }
    return callers;
  }
  FakeStream& Open(const Caller& caller) {
    FakeStream& stream = NewStream();
    stream.WriteAtOnce();
    return BeginToBeat(stream, caller);
  }
  // A stream on which the first order is being written.
  FakeStream& OpenInWrite(const Caller& caller) { return BeginToBeat(NewStream(), caller); }
  // All that happens without time's passing.
  void Settle() { sim_.RunFor(absl::ZeroDuration()); }
  void Stop() { stop_.Send(EndService{}).IgnoreError(); }
  absl::Status AwaitEmpty(absl::Duration at_most) {
    return actor_.Ask(pelton::AwaitEmpty{sim_.Now() + at_most, {}}, absl::InfiniteFuture())
        .Await(absl::InfiniteFuture());
  }

  // Stops; then every call has its answer, every stream its end, and the actor no debts.
  void ExpectOrderlyEnd() {
    Stop();
    for (const auto& stream : streams_) stream->WriteAtOnce();
    Settle();
    for (const auto& call : calls_) EXPECT_TRUE(call->answered() || !call->begun());
    for (const auto& stream : streams_) EXPECT_TRUE(stream->ended());
    streams_.clear();
    calls_.clear();
    EXPECT_EQ(sim_.Shutdown(sim_.Now() + absl::Seconds(1)), absl::OkStatus());
  }

  SimExecutor& sim() { return sim_; }
  const ActorRef<CoordinatorActor>& actor() const { return actor_; }
  const std::vector<std::unique_ptr<FakeCall>>& calls() const { return calls_; }
  const std::vector<std::unique_ptr<FakeStream>>& streams() const { return streams_; }

 private:
  FakeStream& BeginToBeat(FakeStream& stream, const Caller& caller) {
    Settle();
    stream.Beat(caller);
    Settle();
    return stream;
  }

  SimExecutor sim_;
  const ActorRef<CoordinatorActor> actor_;
  CoordinatorRoom stop_;
  uint64_t last_ = 0;
  std::vector<std::unique_ptr<FakeCall>> calls_;
  std::vector<std::unique_ptr<FakeStream>> streams_;
};

TEST(CoordinatorActorTest, ACallThatIsCancelledBeforeItIsParkedLeavesNothing) {
  World world(1);
  FakeCall& early = world.NewJoin(0, 2);
  early.Cancel();
  world.Settle();
  EXPECT_FALSE(early.answered());  // its request may be on the way
  early.Begin();
  world.Settle();
  ASSERT_TRUE(early.answered());
  EXPECT_EQ(early.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(world.JoinAll(2).size(), 2);
  world.ExpectOrderlyEnd();
}

// Between the two halves of a cancellation the call begins, and the other rank's join comes.
TEST(CoordinatorActorTest, ACancellationAndTheAnswerMeetInAnyOrder) {
  int joined = 0;
  int cancelled = 0;
  ForEachSeed(400, [&](uint64_t seed) {
    World world(seed);
    FakeCall& first = world.NewJoin(0, 2);
    FakeCall& second = world.NewJoin(1, 2);
    std::vector<std::function<void()>> left;
    left.push_back([&] { first.Begin(); });
    left.push_back([&] { second.Begin(); });
    left.push_back([&] {
      first.SetCancelled();
      left.push_back([&] { first.SendCancel(); });
    });
    while (!left.empty()) {
      const size_t choice = world.sim().Uniform(left.size());
      const std::function<void()> next = std::move(left[choice]);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(choice));
      next();
      if (world.sim().Uniform(2) == 0) world.Settle();
    }
    world.Settle();
    if (first.answered() && first.code() == absl::StatusCode::kOk) {
      ++joined;
      EXPECT_EQ(second.code(), absl::StatusCode::kOk);
    } else if (first.answered()) {
      ++cancelled;
      EXPECT_EQ(first.code(), absl::StatusCode::kCancelled);
      // It learns, or is to learn, that the other one is gone.
      EXPECT_TRUE(!second.answered() || second.code() == absl::StatusCode::kUnavailable);
    }
    world.ExpectOrderlyEnd();
  });
  EXPECT_GT(joined, 0);
  EXPECT_GT(cancelled, 0);
}

TEST(CoordinatorActorTest, AStopAnswersWhatIsParkedAndWhatStillComes) {
  World world(1);
  const std::vector<Caller> ranks = world.JoinAll(2);
  FakeStream& stream = world.Open(ranks[0]);
  FakeStream& silent = world.NewStream();
  FakeCall& parked = world.NewGather(ranks[0], "g");
  FakeCall& late = world.NewGather(ranks[1], "g");
  FakeCall& cancelled = world.NewGather(ranks[1], "h");
  parked.Begin();
  world.Settle();
  world.Stop();
  late.Begin();
  FakeStream& late_stream = world.NewStream();
  parked.Cancel();
  cancelled.Cancel();
  world.Settle();
  EXPECT_EQ(parked.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  for (const FakeStream* each : {&stream, &silent, &late_stream}) {
    ASSERT_TRUE(each->ended());
    EXPECT_EQ(each->end().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(stream.Count(proto::Order::ABORT), 0);  // nobody has died
  world.ExpectOrderlyEnd();
}

// An actor that has ended drops what it is sent; gRPC waits for the call nevertheless.
TEST(CoordinatorActorTest, WhatComesAfterItsEndIsAnswered) {
  World world(1);
  const std::vector<Caller> ranks = world.JoinAll(1);
  FakeCall& parked = world.NewCall([](CoordinatorState&, const Call&, Outbox*) {});
  FakeStream& stream = world.Open(ranks[0]);
  FakeCall& late = world.NewJoin(0, 1);
  parked.Begin();
  world.Settle();
  // By force, because of the room that is held here.
  EXPECT_FALSE(world.sim().Shutdown(world.sim().Now()).ok() && world.actor().alive());
  ASSERT_FALSE(world.actor().alive());
  late.Begin();
  EXPECT_EQ(parked.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream.end().code(), absl::StatusCode::kUnavailable);
}

TEST(CoordinatorActorTest, AStreamThatBreaksWhileAnOrderIsWrittenEndsAfterIt) {
  for (const bool written : {true, false}) {
    World world(1);
    const std::vector<Caller> ranks = world.JoinAll(2);
    FakeStream& survivor = world.Open(ranks[1]);
    FakeStream& stream = world.OpenInWrite(ranks[0]);
    ASSERT_TRUE(stream.writing());
    stream.Break();
    stream.Beat(ranks[0]);  // which was on the way
    world.Settle();
    EXPECT_FALSE(stream.ended());
    EXPECT_FALSE(stream.reading());
    EXPECT_EQ(survivor.Count(proto::Order::ABORT), 1);
    stream.Written(written);
    world.Settle();
    if (written) {  // the echo
      ASSERT_TRUE(stream.writing());
      stream.Written();
      world.Settle();
    }
    EXPECT_TRUE(stream.ended());
    EXPECT_EQ(stream.Count(proto::Order::ECHO), written ? 1 : 0);
    EXPECT_EQ(survivor.Count(proto::Order::ABORT), 1);
    world.ExpectOrderlyEnd();
  }
}

TEST(CoordinatorActorTest, AWriteThatFailsIsALoss) {
  World world(1);
  const std::vector<Caller> ranks = world.JoinAll(2);
  FakeStream& survivor = world.Open(ranks[1]);
  FakeStream& stream = world.OpenInWrite(ranks[0]);
  stream.Written(false);
  world.Settle();
  EXPECT_TRUE(stream.ended());
  EXPECT_EQ(stream.orders().size(), 1);
  EXPECT_EQ(survivor.Count(proto::Order::ABORT), 1);
  world.ExpectOrderlyEnd();
}

TEST(CoordinatorActorTest, AStreamThatSpeaksForAnotherRankIsALoss) {
  World world(1);
  const std::vector<Caller> ranks = world.JoinAll(2);
  FakeStream& survivor = world.Open(ranks[1]);
  FakeStream& stream = world.Open(ranks[0]);
  stream.Beat(ranks[1]);
  world.Settle();
  EXPECT_EQ(stream.end().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(survivor.Count(proto::Order::ABORT), 1);
  EXPECT_FALSE(survivor.ended());
  world.ExpectOrderlyEnd();
}

TEST(CoordinatorActorTest, ARankThatTakesNoEchoesIsNotRead) {
  World world(1);
  const std::vector<Caller> ranks = world.JoinAll(1);
  FakeStream& stream = world.NewStream();
  world.Settle();
  int beats = 0;
  for (; stream.reading() && beats < 1000; ++beats) {
    stream.Beat(ranks[0]);
    world.Settle();
  }
  EXPECT_LT(beats, 50);
  stream.WriteAtOnce();
  world.Settle();
  EXPECT_TRUE(stream.reading());
  EXPECT_EQ(stream.Count(proto::Order::ECHO), beats);
  world.ExpectOrderlyEnd();
}

TEST(CoordinatorActorTest, ACallIsAnsweredAtItsDeadlineAndASoonerOneBefore) {
  World world(1);
  const std::vector<Caller> ranks = world.JoinAll(2);
  FakeStream& zero = world.Open(ranks[0]);
  FakeStream& one = world.Open(ranks[1]);
  FakeCall& late = world.NewGather(ranks[0], "late");
  FakeCall& soon = world.NewGather(ranks[0], "soon");
  late.Begin(4'000'000);
  world.Settle();
  soon.Begin(1'000'000);
  world.sim().RunFor(absl::Milliseconds(999));
  EXPECT_FALSE(soon.answered());
  world.sim().RunFor(absl::Milliseconds(1));
  EXPECT_EQ(soon.code(), absl::StatusCode::kDeadlineExceeded);
  world.sim().RunFor(absl::Milliseconds(2999));
  EXPECT_FALSE(late.answered());
  world.sim().RunFor(absl::Milliseconds(1));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  // The next deadline is that of the heartbeats.
  world.sim().RunFor(kSilence);
  EXPECT_TRUE(zero.ended());
  EXPECT_TRUE(one.ended());
  world.ExpectOrderlyEnd();
}

// The turn that handles the heartbeat comes late, when the rank's time is up.
TEST(CoordinatorActorTest, AHeartbeatThatHasArrivedCountsBeforeTheTimer) {
  int late = 0;
  ForEachSeed(300, [&](uint64_t seed) {
    World world(seed);
    const std::vector<Caller> ranks = world.JoinAll(1);
    FakeStream& stream = world.Open(ranks[0]);
    world.sim().RunFor(kSilence - absl::Milliseconds(5));
    world.sim().SetFaults({.delay_one_in = 2, .longest_delay = absl::Milliseconds(10)});
    stream.Beat(ranks[0]);
    const absl::Time due = world.sim().Now() + absl::Milliseconds(5);
    world.sim().RunUntil([&] { return stream.Count(proto::Order::ECHO) == 2 || stream.ended(); },
                         absl::InfiniteFuture());
    if (world.sim().Now() > due) ++late;
    EXPECT_EQ(stream.Count(proto::Order::ABORT), 0);
    EXPECT_FALSE(stream.ended());
    world.sim().SetFaults({});
    world.ExpectOrderlyEnd();
  });
  EXPECT_GT(late, 0);
}

TEST(CoordinatorActorTest, WhoAwaitsTheEndIsToldWhoIsLeft) {
  World world(1);
  EXPECT_EQ(world.AwaitEmpty(absl::ZeroDuration()), absl::OkStatus());
  const std::vector<Caller> ranks = world.JoinAll(3);
  world.NewLeave(ranks[1]).Begin();
  const absl::Time asked = world.sim().Now();
  const absl::Status left = world.AwaitEmpty(absl::Seconds(3));
  EXPECT_EQ(left, absl::DeadlineExceededError("ranks that have not left: job 'job': rank 0, 2"));
  EXPECT_EQ(world.sim().Now(), asked + absl::Seconds(3));
  world.NewLeave(ranks[0]).Begin();
  world.NewLeave(ranks[2]).Begin();
  EXPECT_EQ(world.AwaitEmpty(absl::Seconds(3)), absl::OkStatus());
  EXPECT_EQ(world.sim().Now(), asked + absl::Seconds(3));
  world.ExpectOrderlyEnd();
}

// Where the mailbox is too small for all, a stream is ended rather than forgotten, and its rank
// lost.
TEST(CoordinatorActorTest, AStreamWithoutRoomIsEnded) {
  World world(1, /*mailbox=*/8);
  const std::vector<Caller> ranks = world.JoinAll(1);
  FakeStream& stream = world.Open(ranks[0]);
  std::vector<CoordinatorRoom> rest;
  while (true) {
    absl::StatusOr<CoordinatorRoom> room = world.actor().Reserve();
    if (!room.ok()) break;
    rest.push_back(*std::move(room));
  }
  stream.Beat(ranks[0]);
  world.Settle();
  ASSERT_TRUE(stream.ended());
  EXPECT_EQ(stream.end().code(), absl::StatusCode::kResourceExhausted);
  rest.clear();
  EXPECT_EQ(world.AwaitEmpty(absl::ZeroDuration()), absl::OkStatus());
  world.ExpectOrderlyEnd();
}

// One step of a life: something begins, is reported, is cancelled or breaks. What is reported waits
// in the mailbox, or is handled at once, as the seed chooses.
void LiveOn(World& world, const std::vector<Caller>& ranks) {
  SimExecutor& sim = world.sim();
  const auto pick = [&](size_t count) { return static_cast<size_t>(sim.Uniform(count)); };
  const Caller& rank = ranks[pick(ranks.size())];
  const std::string name = absl::StrCat("g", pick(4));
  FakeCall* const call =
      world.calls().empty() ? nullptr : &*world.calls()[pick(world.calls().size())];
  FakeStream* const stream =
      world.streams().empty() ? nullptr : &*world.streams()[pick(world.streams().size())];
  switch (pick(9)) {
    case 0:
    case 1:
      world.NewGather(rank, name);
      break;
    case 2:
      if (call != nullptr && !call->begun()) call->Begin(static_cast<int64_t>(1 + pick(kMinuteUs)));
      break;
    case 3:
      if (call != nullptr && call->can_cancel()) {
        // One that is answered is gone for whoever serves it, but not for gRPC.
        pick(2) == 0 ? call->SetCancelled() : call->Cancel();
      }
      break;
    case 4:
      world.NewStream();
      break;
    case 5:
      if (stream != nullptr && stream->reading()) stream->Beat(rank);
      break;
    case 6:
      if (stream != nullptr && stream->writing()) stream->Written(pick(8) != 0);
      break;
    case 7:
      if (stream != nullptr && stream->can_break() && pick(4) == 0) stream->Break();
      break;
    default:
      if (pick(16) == 0) world.NewLeave(rank).Begin();
      if (pick(4) == 0) sim.RunFor(absl::Milliseconds(pick(2000)));
  }
  for (size_t turns = pick(4); turns > 0; --turns) sim.Step(sim.Now());
}

TEST(CoordinatorActorTest, EveryLifeEndsInOrder) {
  int answered = 0;
  int echoes = 0;
  ForEachSeed(500, [&](uint64_t seed) {
    World world(seed);
    const std::vector<Caller> ranks = world.JoinAll(1 + static_cast<int>(world.sim().Uniform(4)));
    for (int step = 0; step < 150; ++step) LiveOn(world, ranks);
    for (const auto& call : world.calls()) answered += call->answered() ? 1 : 0;
    for (const auto& stream : world.streams()) echoes += stream->Count(proto::Order::ECHO);
    world.ExpectOrderlyEnd();
  });
  EXPECT_GT(answered, 0);
  EXPECT_GT(echoes, 0);
}

}  // namespace
}  // namespace pelton
