// Decentralized averaging with whoever arrives at about the same time: ranks of unequal speed, each
// at its own round, in virtual time.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/test_ranks.h"
#include "comm/control/arrival_state.h"
#include "comm/control/control.h"
#include "comm/control/coordinator_messages.h"
#include "comm/topology/peer_source.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/base/clock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// The coordinator's part, in a simulation's time.
// Threads: the simulation's. Owns: the state and the ranks' ends of it.
class ArrivalDesk final : public EventSource {
 public:
  explicit ArrivalDesk(int32_t size) : state_(WorldSize(size)) {
    for (int32_t rank = 0; rank < size; ++rank) {
      members_.emplace_back(rank);
      ends_.push_back(std::make_unique<End>(*this, rank));
    }
  }
  void Attach(SimExecutor& executor) {
    clock_ = &executor.clock();
    executor.AddEventSource(this);
  }
  std::vector<Matchmaker*> matchmakers() const {
    std::vector<Matchmaker*> all;
    for (const auto& end : ends_) all.push_back(end.get());
    return all;
  }
  // Whom `rank` met in its last round; itself if nobody.
  int32_t LastPeerOf(int32_t rank) const {
    return ends_[static_cast<size_t>(rank)]->match->peer.value();
  }

  absl::Time NextEventTime() override { return state_.NextDeadline(); }
  void RunDue(absl::Time now) override {
    Outbox outbox;
    state_.Expire(now, &outbox);
    Take(outbox);
  }

 private:
  // Threads: the simulation's. Owns: its last answer.
  struct End final : Matchmaker {
    End(ArrivalDesk& the_desk, int32_t its_rank) : desk(the_desk), rank(its_rank) {}
    void Ask(Round round) override { desk.Ask(*this, round); }
    absl::StatusOr<std::optional<Rank>> Answer() override {
      if (!match.has_value()) return std::optional<Rank>();
      return std::optional<Rank>(match->peer);
    }
    ArrivalDesk& desk;
    const int32_t rank;
    uint64_t call = 0;
    std::optional<PeerMatch> match;
  };

  void Ask(End& end, Round round) {
    end.call = ++last_call_;
    end.match.reset();
    const absl::Time now = clock_->Now();
    Outbox outbox;
    state_.Ask({end.call, now, now + absl::Minutes(1)}, Rank(end.rank),
               {CommunicatorId(1), members_, round.value()}, &outbox);
    Take(outbox);
  }
  void Take(const Outbox& outbox) {
    for (const Reply& reply : outbox.replies) {
      ASSERT_TRUE(reply.status.ok()) << reply.status;
      for (const auto& end : ends_) {
        if (end->call == reply.call) end->match = std::get<PeerMatch>(reply.answer);
      }
    }
  }

  ArrivalState state_;
  const Clock* clock_ = nullptr;
  std::vector<Rank> members_;
  std::vector<std::unique_ptr<End>> ends_;
  uint64_t last_call_ = 0;
};

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors =
      new std::vector<TensorSpec>{{"weight", DType::kFloat32, 131, {}},
                                  {"bias", DType::kFloat32, 3, {}},
                                  {"head", DType::kFloat32, 170, {}}};
  return *tensors;
}

struct Options {
  std::vector<int32_t> host_sizes;
  bool is_hierarchical = false;
  std::vector<double> intervals_ms = {};  // by host
  uint64_t seed = 1;
};

// Ranks that do nothing but rounds, each at its own pace; their elements are what averaging leaves.
// Threads: the test's. Owns: ranks and desk.
class Trainers {
 public:
  explicit Trainers(const Options& options)
      : is_hierarchical_(options.is_hierarchical),
        desk_(static_cast<int32_t>(options.host_sizes.size())),
        ranks_(RanksOf(options, desk_)) {
    desk_.Attach(ranks_.executor());
    for (size_t host = 0; host < options.host_sizes.size(); ++host) {
      for (int32_t i = 0; i < options.host_sizes[host]; ++i) {
        const auto rank = static_cast<float>(lives_.size());
        lives_.push_back({.interval = absl::Milliseconds(options.intervals_ms[host]),
                          .host = static_cast<int32_t>(host),
                          .begins = ranks_.executor().Now()});
        for (const TensorSpec& tensor : Tensors()) {
          std::vector<float>& values = lives_.back().values.emplace_back(tensor.count);
          for (size_t j = 0; j < values.size(); ++j) {
            values[j] = std::sin(3 * rank + static_cast<float>(j));
          }
        }
      }
    }
  }

  struct Life {
    absl::Duration interval;
    int32_t host = 0;
    absl::Time begins;  // its next round
    std::vector<std::vector<float>> values = {};
    std::optional<Future<void>> round = std::nullopt;
    int rounds = 0;
    std::map<int32_t, int> met = {};  // by host, itself when it was alone
  };

  void RunFor(absl::Duration duration) {
    const absl::Time end = ranks_.executor().Now() + duration;
    while (Step(end)) {
    }
  }
  const std::vector<Life>& lives() const { return lives_; }
  double Mean() const {
    double sum = 0;
    for (const Life& life : lives_) {
      for (const auto& tensor : life.values) {
        for (float value : tensor) sum += value;
      }
    }
    return sum / static_cast<double>(lives_.size());
  }
  float Spread() const {
    float spread = 0;
    for (const Life& life : lives_) {
      for (size_t slot = 0; slot < life.values.size(); ++slot) {
        for (size_t j = 0; j < life.values[slot].size(); ++j) {
          spread = std::max(spread, std::abs(life.values[slot][j] - lives_[0].values[slot][j]));
        }
      }
    }
    return spread;
  }

 private:
  static TestRanksOptions RanksOf(const Options& options, const ArrivalDesk& desk) {
    TestRanksOptions ranks;
    ranks.algorithm = "decentralized";
    ranks.options = {{"peer_selection_mode", "avoid_stragglers"},
                     {"hierarchical", options.is_hierarchical ? "true" : "false"}};
    ranks.host_sizes = options.host_sizes;
    ranks.tensors = Tensors();
    ranks.bucket_size_bytes = 600;  // several buckets
    ranks.matchmakers = desk.matchmakers();
    ranks.seed = options.seed;
    ranks.is_disturbed = true;
    return ranks;
  }

  // One rank's beginning or end of a round; false when all are at rest: no round begins after
  // `end`.
  bool Step(absl::Time end) {
    absl::Time next = absl::InfiniteFuture();
    for (const Life& life : lives_) {
      if (!life.round.has_value() && life.begins < end) next = std::min(next, life.begins);
    }
    const auto ended = [this] {
      return std::any_of(lives_.begin(), lives_.end(), [](const Life& life) {
        return life.round.has_value() && life.round->ready();
      });
    };
    ranks_.executor().RunUntil(ended, std::min(next, end + absl::Seconds(20)));
    bool moved = false;
    for (size_t rank = 0; rank < lives_.size(); ++rank) {
      moved |= End(rank) || (lives_[rank].begins < end && Begin(rank));
    }
    return moved;
  }

  bool Begin(size_t rank) {
    Life& life = lives_[rank];
    if (life.round.has_value() || life.begins > ranks_.executor().Now()) return false;
    ModelRounds& rounds = ranks_.rounds(static_cast<int32_t>(rank));
    for (size_t i = 0; i < life.values.size(); ++i) {
      const SlotId slot(static_cast<int32_t>(i));
      std::memcpy(rounds.DataOf(slot), life.values[i].data(), life.values[i].size() * 4);
      EXPECT_TRUE(rounds.MarkReady(slot).ok());
    }
    EXPECT_TRUE(rounds.EndRound().ok());
    life.begins = ranks_.executor().Now() + life.interval;
    life.round = rounds.RoundDone(ranks_.executor().Now() + absl::Seconds(60));
    return true;
  }

  bool End(size_t rank) {
    Life& life = lives_[rank];
    if (!life.round.has_value() || !life.round->ready()) return false;
    ModelRounds& rounds = ranks_.rounds(static_cast<int32_t>(rank));
    const absl::Status status = rounds.CloseRound(std::move(*life.round).Take());
    life.round.reset();
    EXPECT_TRUE(status.ok()) << status;
    ++life.rounds;
    const int32_t peer = desk_.LastPeerOf(life.host);
    ++life.met[peer];
    const std::vector<std::vector<float>> before = life.values;
    for (size_t i = 0; i < life.values.size(); ++i) {
      const std::vector<std::byte> result =
          ranks_.ResultOf(static_cast<int32_t>(rank), SlotId(static_cast<int32_t>(i)));
      std::memcpy(life.values[i].data(), result.data(), result.size());
    }
    if (peer == life.host && !is_hierarchical_) {
      EXPECT_EQ(life.values, before) << "it was alone";
    }
    return true;
  }

  const bool is_hierarchical_;
  ArrivalDesk desk_;
  TestRanks ranks_;
  std::vector<Life> lives_;
};

void ExpectTheSamePairsOnBothEnds(const Trainers& trainers) {
  for (size_t one = 0; one < trainers.lives().size(); ++one) {
    for (const auto& [other, times] : trainers.lives()[one].met) {
      const auto& back = trainers.lives()[static_cast<size_t>(other)].met;
      EXPECT_EQ(back.at(static_cast<int32_t>(one)), times) << "ranks " << one << " and " << other;
    }
  }
}

TEST(DecentralizedArrivalTest, ASlowRankHoldsUpNobodyAndIsMetInItsRounds) {
  Trainers trainers({.host_sizes = {1, 1, 1, 1}, .intervals_ms = {10, 10, 10, 160}});
  const double mean = trainers.Mean();
  trainers.RunFor(absl::Seconds(5));
  const auto& lives = trainers.lives();
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_GT(lives[rank].rounds, 450) << "rank " << rank;
    EXPECT_GE(lives[rank].met.at(3), 5) << "rank " << rank;
  }
  EXPECT_GE(lives[3].rounds, 30);
  EXPECT_LE(lives[3].rounds, 32);
  ExpectTheSamePairsOnBothEnds(trainers);
  EXPECT_NEAR(trainers.Mean(), mean, 1e-4);
  EXPECT_LT(trainers.Spread(), 1e-3);
}

TEST(DecentralizedArrivalTest, KeepsTheMeanForRanksOfAnySpeed) {
  ForEachSeed(100, [](uint64_t seed) {
    Options options{.host_sizes = std::vector<int32_t>(1 + seed % 6, 1), .seed = seed};
    for (size_t rank = 0; rank < options.host_sizes.size(); ++rank) {
      options.intervals_ms.push_back(2 + static_cast<double>((seed * 7 + rank * 13) % 60));
    }
    Trainers trainers(options);
    const double mean = trainers.Mean();
    trainers.RunFor(absl::Seconds(1));
    ExpectTheSamePairsOnBothEnds(trainers);
    EXPECT_NEAR(trainers.Mean(), mean, 1e-4);
    for (const auto& life : trainers.lives()) EXPECT_GT(life.rounds, 3);
  });
}

// The ranks of a host go together; hosts of several speeds meet by their leaders.
TEST(DecentralizedArrivalTest, PairsHostsThatArriveTogether) {
  for (uint64_t seed = 1; seed < 20; ++seed) {
    Trainers trainers({.host_sizes = {2, 1, 3, 1},
                       .is_hierarchical = true,
                       .intervals_ms = {10, 15, 10, 80},
                       .seed = seed});
    const double mean = trainers.Mean();
    trainers.RunFor(absl::Seconds(2));
    EXPECT_NEAR(trainers.Mean(), mean, 1e-3);
    EXPECT_LT(trainers.Spread(), 1e-2);
    EXPECT_GT(trainers.lives()[0].rounds, 5 * trainers.lives()[6].rounds);
  }
}

}  // namespace
}  // namespace pelton
