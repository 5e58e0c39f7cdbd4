// Rounds beside training that ranks do not share: they end without losing what is under way.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/averaging_loop.h"
#include "backend/test_loop_world.h"
#include "core/actor/actor.h"
#include "core/actor/context.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"
#include "core/plan/round_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kBuckets = 2;
constexpr uint64_t kHalf = kCount / 2;  // elements of a bucket
using Values = std::vector<float>;

// What one rank has sent to another for a bucket, and it has not taken in.
// Threads: the simulation's. Owns: the values.
struct Letter {
  Values offer;  // the sender's weights; empty: none
  Values answer = Values(kHalf, 0);
};

// One-sided memory that all ranks reach, with what they did.
// Threads: the simulation's. Owns: all of it.
struct Post {
  Post(uint64_t seed, int32_t size)
      : random(seed),
        size(static_cast<size_t>(size)),
        letters(kBuckets * this->size * this->size),
        last_stages(this->size, 0) {}
  Letter& At(BucketId bucket, size_t target, size_t source) {
    return letters[(static_cast<size_t>(bucket.value()) * size + target) * size + source];
  }

  std::mt19937_64 random;
  const size_t size;
  std::vector<Letter> letters;
  std::vector<int> last_stages;  // by rank: stages in rounds that collect
  int at_work = 0;               // stages in other rounds that are under way
  bool one_goes_on = false;      // at once after its last round, because it has been resumed
  int met = 0;                   // offers that were answered
};

// Exchanges whole numbers between pairs, so that no sum rounds: for each offer of a rank k half of
// x_k - x is added here and sent to k, which subtracts it.
// Threads: the simulation's. Owns: its scratch.
class PairStage final : public Stage {
 public:
  PairStage(Post* post, Rank rank) : post_(*post), rank_(static_cast<size_t>(rank.value())) {}
  absl::string_view name() const override { return "pairs"; }

  absl::Status Start(BucketRun& run, StageState*) override {
    is_last_ = run.mode() == RoundMode::kCollecting;
    has_answered_ = is_last_;
    sum_.assign(kHalf, 0);
    const auto* const flat = reinterpret_cast<const float*>(run.flat());
    weights_.assign(flat, flat + kHalf);
    if (is_last_) {
      EXPECT_TRUE(post_.at_work == 0 || post_.one_goes_on)
          << "the barrier lets rank " << rank_ << " through too early";
      ++post_.last_stages[rank_];
    } else {
      ++post_.at_work;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    if (post_.random() % 3 != 0) return false;  // others come in between
    if (!std::exchange(has_answered_, true)) {
      Answer(run.layout().id);
      return false;
    }
    Collect(run.layout().id);
    if (!is_last_) {
      const size_t peer = post_.random() % post_.size;
      if (peer != rank_) post_.At(run.layout().id, peer, rank_).offer = weights_;
      --post_.at_work;
    }
    auto* const flat = reinterpret_cast<float*>(run.flat());
    std::copy(sum_.begin(), sum_.end(), flat);
    return true;
  }

 private:
  void Answer(BucketId bucket) {
    for (size_t source = 0; source < post_.size; ++source) {
      const Values offer = std::exchange(post_.At(bucket, rank_, source).offer, {});
      if (offer.empty()) continue;
      ++post_.met;
      Letter& back = post_.At(bucket, source, rank_);
      for (size_t i = 0; i < kHalf; ++i) {
        const float half = std::trunc((offer[i] - weights_[i]) / 2);
        Add(i, half);
        back.answer[i] -= half;
      }
    }
  }
  void Collect(BucketId bucket) {
    for (size_t source = 0; source < post_.size; ++source) {
      Letter& letter = post_.At(bucket, rank_, source);
      for (size_t i = 0; i < kHalf; ++i) Add(i, std::exchange(letter.answer[i], 0));
      if (is_last_) letter.offer.clear();  // nobody would answer it before the rank has moved on
    }
  }
  void Add(size_t index, float value) {
    weights_[index] += value;
    sum_[index] += value;
  }

  Post& post_;
  const size_t rank_;
  bool is_last_ = false;
  bool has_answered_ = false;
  Values weights_;
  Values sum_;
};

// Threads: the simulation's. Owns: nothing.
class Pairs final : public Algorithm {
 public:
  Pairs(Post* post, Rank rank) : post_(*post), rank_(rank) {}
  std::string BytesSent() const override { return "B"; }
  Schedule schedule() const override {
    Schedule schedule;
    schedule.source = Source::kWeights;
    schedule.trigger = TriggerKind::kTimer;
    schedule.ranks_share_rounds = false;
    return schedule;
  }
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout&, const Tiers&) override {
    PipelineSpec spec;
    spec.stages.push_back(std::make_unique<PairStage>(&post_, rank_));
    return spec;
  }

 private:
  Post& post_;
  const Rank rank_;
};

struct Tick {};

constexpr absl::Duration kTick = absl::Microseconds(20);

// Lets time pass for stages that wait, which have no event of their own.
// Threads: its turns. Owns: nothing.
class Ticker final : public Actor {
 public:
  explicit Ticker(const absl::Duration* period) : period_(*period) {}
  absl::Status OnStart() override {
    Handle(Tick{});
    return absl::OkStatus();
  }
  void Handle(Tick) { context().SendAfter(*this, period_, Tick{}); }

 private:
  const absl::Duration& period_;
};

// Threads: one. Owns: the world of one seed.
class AloneWorld {
 public:
  AloneWorld(uint64_t seed, int32_t size)
      : post_(seed, size),
        world_(seed, size, [this](Rank rank) { return std::make_unique<Pairs>(&post_, rank); }),
        ticker_(Spawn<Ticker>(world_.executor(), {}, &tick_)) {}
  ~AloneWorld() { StopAndWait(ticker_, world_.executor().Now()).IgnoreError(); }

  LoopWorld& world() { return world_; }
  Post& post() { return post_; }
  AveragingLoop& loop(int32_t rank) { return world_.rank(rank).loop(); }
  int added(int32_t rank) { return world_.rank(rank).added(); }
  Future<void> AskToStop(int32_t rank, absl::Duration timeout = kStopTimeout) {
    return loop(rank).RequestStop(world_.executor().Now() + timeout);
  }
  absl::Status Outcome(Future<void> future) {
    return std::move(future).Await(world_.executor().Now() + kStopTimeout);
  }
  void RunFor(absl::Duration duration) { world_.executor().RunFor(duration); }
  // While stages have nothing to wait for.
  void RunLong(absl::Duration duration) {
    tick_ = absl::Milliseconds(10);
    RunFor(duration);
    tick_ = kTick;
    RunFor(absl::Milliseconds(10));
  }

  // Exactly: whole numbers do not round.
  void ExpectSumIsKept() {
    double sum = 0;
    double trained = 0;
    for (int32_t rank = 0; rank < world_.size(); ++rank) {
      for (float weight : world_.rank(rank).weights()) sum += static_cast<double>(weight);
      trained += world_.rank(rank).trained();
    }
    EXPECT_EQ(sum, trained);
  }

 private:
  Post post_;
  LoopWorld world_;
  absl::Duration tick_ = kTick;
  ActorRef<Ticker> ticker_;
};

TEST(AveragingAloneTest, RanksEndInTheirOwnTimeAndLoseNothing) {
  int met = 0;
  int apart = 0;
  const uint64_t seeds = ForEachSeed(200, [&](uint64_t seed) {
    AloneWorld alone(seed, static_cast<int32_t>(1 + seed % 5));
    LoopWorld& world = alone.world();
    for (int phase = 1; phase <= 2; ++phase) {
      world.ResumeAll();
      for (int32_t rank = 0; rank < world.size(); ++rank) {
        world.Train(rank, static_cast<int>(world.executor().Uniform(12)));
      }
      ASSERT_TRUE(world.RunUntilStopped(phase)) << "a rank hangs";
      for (int32_t rank = 0; rank < world.size(); ++rank) {
        EXPECT_TRUE(world.trainer(rank).stop_status().ok()) << world.trainer(rank).stop_status();
        apart += alone.added(rank) != alone.added(0) ? 1 : 0;
      }
      // Every bucket has heard that its round was the last.
      EXPECT_THAT(alone.post().last_stages, Each(static_cast<int>(kBuckets) * phase));
      alone.ExpectSumIsKept();
    }
    met += alone.post().met;
  });
  if (seeds < 30) return;  // too few to say how often
  EXPECT_GT(met, static_cast<int>(5 * seeds)) << "ranks hardly meet";
  EXPECT_GT(apart, 0) << "ranks keep step";
}

TEST(AveragingAloneTest, StopNamesTheRanksThatWereNotAskedAndWaitsAsLongAsTheyTake) {
  AloneWorld alone(1, 3);
  alone.world().ResumeAll();
  Future<void> claimed =
      alone.loop(0).RequestClaim();  // so that it makes no rounds in the meantime
  alone.RunFor(absl::Milliseconds(5));
  Future<void> one = alone.AskToStop(1, absl::Seconds(1));
  const absl::Status status = alone.Outcome(alone.AskToStop(2, absl::Seconds(1)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.ToString(), HasSubstr("is this rank's last, and waits until rank 0 is asked"));
  EXPECT_FALSE(alone.Outcome(std::move(one)).ok());
  // No operation may take so long; the wish stands all the same.
  alone.RunLong(kRoundTimeout + absl::Seconds(5));
  EXPECT_TRUE(alone.Outcome(alone.AskToStop(0)).ok());
  for (int32_t rank : {1, 2}) EXPECT_TRUE(alone.Outcome(alone.AskToStop(rank)).ok());
  alone.ExpectSumIsKept();
}

TEST(AveragingAloneTest, AResumeAfterTheWishTakesEffectAfterTheLastRound) {
  AloneWorld alone(1, 2);
  alone.world().ResumeAll();
  alone.RunFor(absl::Milliseconds(5));
  Future<void> withdrawn = alone.AskToStop(0);
  alone.RunFor(absl::Milliseconds(5));
  alone.post().one_goes_on = true;
  EXPECT_TRUE(alone.loop(0).Resume().ok());
  EXPECT_EQ(alone.Outcome(std::move(withdrawn)).code(), absl::StatusCode::kCancelled);
  const int before = alone.added(0);
  alone.RunFor(absl::Milliseconds(5));
  EXPECT_EQ(alone.added(0), before) << "it is at the barrier";
  EXPECT_TRUE(alone.Outcome(alone.AskToStop(1)).ok()) << "both have been asked";
  alone.RunFor(absl::Milliseconds(5));
  EXPECT_GT(alone.added(0), before + 1) << "its rounds do not go on";
  EXPECT_TRUE(alone.loop(1).Resume().ok());
  Future<void> zero = alone.AskToStop(0);
  EXPECT_TRUE(alone.Outcome(alone.AskToStop(1)).ok());
  EXPECT_TRUE(alone.Outcome(std::move(zero)).ok());
  EXPECT_THAT(alone.post().last_stages, Each(static_cast<int>(kBuckets) * 2));
  alone.ExpectSumIsKept();
}

TEST(AveragingAloneTest, ADeathEndsTheWaitForTheOthersWithItsReason) {
  ForEachSeed(50, [&](uint64_t seed) {
    AloneWorld alone(seed, 3);
    alone.world().ResumeAll();
    alone.RunFor(absl::Milliseconds(1));
    Future<void> zero = alone.AskToStop(0);
    Future<void> one = alone.AskToStop(1);
    alone.RunFor(absl::Milliseconds(static_cast<int64_t>(seed % 4)));
    alone.world().fabric().KillRank(Rank(2));
    const absl::Status status = alone.Outcome(std::move(zero));
    EXPECT_THAT(status.ToString(), HasSubstr("rank 2 died"));
    EXPECT_THAT(alone.Outcome(std::move(one)).ToString(), HasSubstr("rank 2 died"));
    EXPECT_EQ(alone.loop(0).Resume(), status);
  });
}

// Else this rank would collect before the others have ended.
TEST(AveragingAloneTest, AnotherOperationInPlaceOfTheBarrierEndsTheLoop) {
  AloneWorld alone(1, 2);
  alone.world().ResumeAll();
  Future<void> claimed = alone.loop(1).RequestClaim();  // its scheduler launches nothing
  alone.RunFor(absl::Milliseconds(1));
  float element = 0;
  Operation sum;
  sum.kind = OperationKind::kAllReduce;
  sum.count = 1;
  sum.set_source(Locate(&element, sizeof(element)));
  sum.set_target(sum.source());
  HostStream stream;
  ASSERT_TRUE(alone.world().communicator(1).Launch(sum, stream).ok());
  const absl::Status status = alone.Outcome(alone.AskToStop(0));
  EXPECT_THAT(status.ToString(), HasSubstr("the operation is barrier on rank 0 and allreduce"));
  EXPECT_EQ(alone.loop(0).Resume(), status);
}

// No operation of their own would tell them.
TEST(AveragingAloneTest, AFailureOfTheJobEndsTheRoundsOfEachRank) {
  AloneWorld alone(1, 2);
  alone.world().ResumeAll();
  alone.RunFor(absl::Milliseconds(1));
  alone.world().rank(0).FailJob(absl::UnavailableError("rank 1 has died"));
  alone.RunFor(absl::Milliseconds(1));
  const int added = alone.added(0);
  alone.RunFor(absl::Milliseconds(5));
  EXPECT_EQ(alone.added(0), added);
  EXPECT_THAT(alone.loop(0).Resume().ToString(), HasSubstr("averaging: rank 1 has died"));
}

TEST(AveragingAloneTest, TakesAPlanWithoutTheStopTensorOnly) {
  LoopWorld shared(1, 1);
  AveragingLoopOptions options;
  options.ranks_share_rounds = false;
  options.copy_in = [](SlotId, std::byte*) { return absl::OkStatus(); };
  options.add = [](SlotId, const std::byte*) {};
  EXPECT_THAT(
      AveragingLoop::Create(shared.rank(0).rounds(), std::move(options)).status().ToString(),
      HasSubstr("has a tensor 'averaging: wish to stop', but its ranks do not share rounds"));
}

}  // namespace
}  // namespace pelton
