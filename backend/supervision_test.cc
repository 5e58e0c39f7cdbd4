// A part of a membership that fails ends it on all ranks, with the part's own words, in every order
// that a seed gives.
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/match.h"
#include "algorithms/algorithm.h"
#include "backend/averaging_loop.h"
#include "backend/peer_selector.h"
#include "backend/session.h"
#include "backend/test_control.h"
#include "comm/communicator.h"
#include "comm/tiers.h"
#include "comm/transport/sim/sim_fabric.h"
#include "comm/window/peer_link.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/base/moving_deadline.h"
#include "core/round/model_rounds.h"
#include "core/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeeds = 50;

// Hands what one rank reports to the other, as a coordinator does.
// Threads: one. Owns: nothing.
class TellingControl final : public SilentControl {
 public:
  absl::Status Report(const absl::Status& reason, absl::Time) override {
    return other.Send(Order{Order::Kind::kAbort, self, reason});
  }
  Rank self;
  ActorRef<Session> other;
};

// Knows who exchanges with whom. Threads: one. Owns: nothing.
class MatchingControl final : public SilentControl {
 public:
  absl::StatusOr<ControlAnswer> Ask(ControlQuestion, absl::Time) override { return Matching{1, 0}; }
};

// Throws in the scheduler's turn, as a bug of the runtime would, when it is shown a bucket.
// Threads: as RangeViewer. Owns: nothing.
class ThrowingViewer final : public RangeViewer {
 public:
  void Follow() override {}
  void Leave() override {}
  bool is_looking() const override { return true; }
  absl::AnyInvocable<void()> Begin(std::string) override {
    throw std::runtime_error("a bug in a turn");
  }
};

// Throws in the turn of whoever drives it, once.
// Threads: one. Owns: what it wraps.
class ThrowingCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  bool Progress() override {
    if (std::exchange(throws, false)) throw std::runtime_error("a bug in a turn");
    return ForwardingCommunicator::Progress();
  }
  bool throws = false;
};

// Two ranks with a session and a communicator each. Threads: one. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed) : executor(seed), fabric_(WorldSize(2), NetworkOf(seed)) {
    executor.AddEventSource(&fabric_);
    std::vector<std::unique_ptr<Communicator>> opened =
        *fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(2)));
    for (size_t rank = 0; rank < 2; ++rank) {
      wires[rank] = std::make_unique<ThrowingCommunicator>(std::move(opened[rank]));
      Session::Options options;
      options.control = &controls_[rank];
      controls_[rank].self = Rank(static_cast<int32_t>(rank));
      options.note = &notes[rank];
      options.telling = &executor;
      sessions[rank] = Spawn<Session>(executor, {.name = "session"}, std::move(options));
      controls_[1 - rank].other = sessions[rank];
    }
  }
  ~World() {
    executor.Shutdown(Soon()).IgnoreError();
    for (auto& wire : wires) wire.reset();
    executor.RemoveEventSource(&fabric_);
  }

  absl::Time Soon() const { return executor.Now() + absl::Seconds(20); }
  void ExpectEndedBy(const std::string& part) const {
    ExpectOver(part);
    ExpectOver("a bug in a turn");
  }
  // On both ranks, and why.
  void ExpectOver(const std::string& why) const {
    for (const FailureNote& note : notes) EXPECT_THAT(note.Get().ToString(), HasSubstr(why));
  }

  SimExecutor executor;
  std::array<FailureNote, 2> notes;
  std::array<ActorRef<Session>, 2> sessions;
  std::array<std::unique_ptr<ThrowingCommunicator>, 2> wires;

 private:
  SimOptions NetworkOf(uint64_t seed) {
    SimOptions options;
    options.seed = seed;
    options.clock = &executor.clock();
    options.link.latency = absl::Microseconds(static_cast<int64_t>(executor.Uniform(300)));
    return options;
  }

  SimFabric fabric_;
  std::array<TellingControl, 2> controls_;
};

// A model's rounds on one of the ranks. Threads: one. Owns: all but the world.
struct RoundsHere {
  RoundsHere(World& world, size_t rank, const std::string& algorithm_name)
      : algorithm(*MakeAlgorithm(algorithm_name, {})) {
    options.model_name = "net";
    options.rank = Rank(static_cast<int32_t>(rank));
    options.executor = &world.executor;
    options.parent = world.sessions[rank];
    options.runner = world.wires[rank].get();
    options.pipeline_factory = [this, &wire = *world.wires[rank]](const BucketLayout& layout) {
      return MakePipeline(*algorithm, layout, Tiers::Of(wire));
    };
  }
  void Start(std::vector<TensorSpec> tensors) {
    PlanOptions plan;
    plan.world_size = WorldSize(2);
    plan.constraints = algorithm->Constraints();
    rounds = *ModelRounds::Create(*Plan::Build(std::move(tensors), plan), std::move(options));
  }
  // A round that somebody waits for from its beginning.
  Future<void> BeginRound(absl::Time deadline) {
    Future<void> done = rounds->RoundDone(deadline);
    EXPECT_TRUE(rounds->MarkReady(SlotId(0)).ok());
    EXPECT_TRUE(rounds->EndRound().ok());
    return done;
  }

  const std::unique_ptr<Algorithm> algorithm;
  ModelRoundsOptions options;
  std::unique_ptr<ModelRounds> rounds;
};

struct Models {
  explicit Models(World& world, const std::string& algorithm = "gradient_allreduce")
      : ranks{RoundsHere(world, 0, algorithm), RoundsHere(world, 1, algorithm)} {}
  RoundsHere& operator[](size_t rank) { return ranks[rank]; }
  std::array<RoundsHere, 2> ranks;
};

const std::vector<TensorSpec> kOneTensor = {{.name = "a", .count = 100}};

TEST(SupervisionTest, ASchedulerThatFailsEndsTheSessionsOfAllRanks) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    World world(seed);
    ThrowingViewer viewer;
    Models models(world);
    models[0].options.viewer = &viewer;
    for (RoundsHere& model : models.ranks) model.Start(kOneTensor);
    Future<void> failed = models[0].BeginRound(world.Soon());
    Future<void> other = models[1].BeginRound(world.Soon());
    Future<RoundSight> look = models[0].rounds->RequestLook(world.Soon());
    world.executor.RunFor(absl::Seconds(1));
    world.ExpectEndedBy("scheduler of 'net'");
    // Whoever waits is told by then, and so is who asks later.
    ASSERT_TRUE(failed.ready());
    ASSERT_TRUE(other.ready());
    EXPECT_THAT(std::move(failed).Take().ToString(), HasSubstr("a bug in a turn"));
    EXPECT_THAT(std::move(other).Take().ToString(), HasSubstr("a bug in a turn"));
    ASSERT_TRUE(look.ready());
    // By the order of the turns it may have been answered before.
    const absl::Status seen = std::move(look).Take().status();
    EXPECT_TRUE(seen.ok() || absl::StrContains(seen.message(), "a bug in a turn")) << seen;
    EXPECT_THAT(models[0].rounds->Look(world.Soon()).status().ToString(),
                HasSubstr("scheduler of 'net' has ended: exception in a turn: a bug in a turn"));
  });
}

// A model may end after its session, which waits for nothing of it.
TEST(SupervisionTest, ASchedulerOutlivesItsSessionAndFailsWithoutIt) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    World world(seed);
    Models models(world);
    for (RoundsHere& model : models.ranks) model.Start(kOneTensor);
    const absl::Time began = world.executor.Now();
    EXPECT_TRUE(StopAndWait(world.sessions[0], world.Soon()).ok());
    EXPECT_EQ(world.executor.Now(), began);
    Future<void> here = models[0].BeginRound(world.Soon());
    Future<void> there = models[1].BeginRound(world.Soon());
    EXPECT_TRUE(models[0].rounds->CloseRound(std::move(here).Await(world.Soon())).ok());
    EXPECT_TRUE(models[1].rounds->CloseRound(std::move(there).Await(world.Soon())).ok());
    Future<void> failed = models[0].BeginRound(world.Soon());
    world.wires[0]->throws = true;
    world.executor.RunFor(absl::Seconds(1));
    ASSERT_TRUE(failed.ready());
    EXPECT_THAT(std::move(failed).Take().ToString(), HasSubstr("a bug in a turn"));
    EXPECT_TRUE(world.notes[0].Get().ok());
  });
}

TEST(SupervisionTest, AModelThatEndsFirstLeavesItsSessionAsItIs) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    World world(seed);
    {
      Models models(world);
      for (RoundsHere& model : models.ranks) model.Start(kOneTensor);
      models[0].BeginRound(world.Soon()).WaitUntil(world.executor.Now());
    }
    EXPECT_TRUE(world.executor.Shutdown(world.Soon()).ok());
    for (const FailureNote& note : world.notes) EXPECT_TRUE(note.Get().ok());
  });
}

TEST(SupervisionTest, AnAveragingLoopThatFailsEndsTheSessionsOfAllRanks) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    World world(seed);
    Models models(world, "async_model_average");
    bool throws = false;
    std::array<std::unique_ptr<AveragingLoop>, 2> loops;
    for (size_t rank = 0; rank < 2; ++rank) {
      models[rank].options.on_round = [&throws, rank](Round) {
        if (rank == 0 && throws) throw std::runtime_error("a bug in a turn");
      };
      models[rank].Start({kOneTensor[0], AveragingLoop::StopTensor()});
      AveragingLoopOptions options;
      options.copy_in = [](SlotId, std::byte*) { return absl::OkStatus(); };
      options.add = [](SlotId, const std::byte*) {};
      options.executor = &world.executor;
      options.parent = world.sessions[rank];
      options.model_name = "net";
      loops[rank] = *AveragingLoop::Create(*models[rank].rounds, std::move(options));
      EXPECT_TRUE(loops[rank]->Resume().ok());
    }
    world.executor.RunFor(absl::Milliseconds(5));
    Future<void> stopped = loops[0]->RequestStop(world.Soon());
    throws = true;
    world.executor.RunFor(absl::Seconds(1));
    world.ExpectEndedBy("averaging loop of 'net'");
    ASSERT_TRUE(stopped.ready());
    EXPECT_THAT(std::move(stopped).Take().ToString(), HasSubstr("a bug in a turn"));
    EXPECT_THAT(loops[0]->Claim(world.Soon()).ToString(),
                HasSubstr("averaging loop of 'net' has ended: exception in a turn"));
  });
}

TEST(SupervisionTest, AWindowsLinkThatFailsEndsTheSessionsOfAllRanks) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    World world(seed);
    ThrowingCommunicator* const wire = world.wires[0].get();
    std::array<std::unique_ptr<PeerLink>, 2> links;
    for (size_t rank = 0; rank < 2; ++rank) {
      links[rank] = std::make_unique<PeerLink>(std::move(world.wires[rank]),
                                               Rank(static_cast<int32_t>(1 - rank)),
                                               &world.executor, world.sessions[rank]);
    }
    const MovingDeadline deadline{world.Soon(), nullptr, world.executor.Now()};
    LinkQuestion question;
    question.request.call = LinkCall::kTryLock;
    // Nobody serves it, and the link goes on.
    EXPECT_TRUE(absl::IsNotFound(links[0]->AwaitMutex(links[0]->Ask(question), deadline).status()));
    wire->throws = true;
    Future<bool> here = links[0]->Ask(question);
    Future<bool> there = links[1]->Ask(question);
    world.executor.RunFor(absl::Seconds(1));
    world.ExpectEndedBy("window link to rank 1");
    ASSERT_TRUE(here.ready());
    ASSERT_TRUE(there.ready());
    EXPECT_THAT(std::move(here).Take().status().ToString(), HasSubstr("a bug in a turn"));
    EXPECT_THAT(std::move(there).Take().status().ToString(), HasSubstr("a bug in a turn"));
    EXPECT_THAT(links[0]->Ask(question).Await(world.Soon()).status().ToString(),
                HasSubstr("a bug in a turn"));
  });
}

// The only part of a session that is restarted: it owes nothing between two questions.
TEST(SupervisionTest, AnAskerThatCrashesIsRestartedUntilThatIsTooOften) {
  uint64_t ended = 0;
  uint64_t restarted = 0;
  const uint64_t seeds = ForEachSeed(2 * kSeeds, [&](uint64_t seed) {
    World world(seed);
    MatchingControl control;
    SelectPeersRequest question;
    question.members = {Rank(0), Rank(1)};
    const auto asker = SpawnUnder<PeerAsker>(
        world.sessions[0],
        {.name = "peer selector", .executor = &world.executor, .on_failure = OnFailure::kRestart},
        &control, question, Rank(0));
    std::vector<Future<Rank>> answers;
    for (uint64_t step = 0; step < 20; ++step) {
      answers.push_back(asker.Ask(PeerQuestion{step, {}}, world.Soon()));
    }
    world.executor.SetFaults({.crash_one_in = 4, .delay_one_in = 4});
    world.executor.RunFor(absl::Seconds(9));
    world.executor.SetFaults({});
    const bool is_over = !world.notes[0].Get().ok();
    is_over ? ++ended : ++restarted;
    if (is_over) world.ExpectOver("peer selector: restarted 3 times within 10s, and again");
    EXPECT_EQ(asker.alive(), !is_over);
    for (Future<Rank>& answer : answers) {
      ASSERT_TRUE(answer.ready());
      const absl::StatusOr<Rank> peer = std::move(answer).Take();
      if (peer.ok()) {
        EXPECT_EQ(*peer, Rank(1));
      } else {
        EXPECT_TRUE(is_over) << peer.status();
        EXPECT_THAT(peer.status().ToString(), HasSubstr("a crash that the simulation chose"));
      }
    }
    if (is_over) return;
    EXPECT_EQ(*asker.Ask(PeerQuestion{20, {}}, world.Soon()).Await(world.Soon()), Rank(1));
    EXPECT_TRUE(world.sessions[0].alive());
  });
  if (seeds < kSeeds) return;
  EXPECT_GT(ended, 0u);
  EXPECT_GT(restarted, 0u);
}

}  // namespace
}  // namespace pelton
