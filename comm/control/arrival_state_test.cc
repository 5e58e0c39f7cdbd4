#include "comm/control/arrival_state.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

absl::Time At(double milliseconds) {
  return absl::UnixEpoch() + absl::Hours(1) + absl::Milliseconds(milliseconds);
}

const PeerMatch& MatchIn(const Reply& reply) { return std::get<PeerMatch>(reply.answer); }

FindPeerRequest Question(int32_t world_size, uint64_t round, uint32_t group = 1) {
  FindPeerRequest request;
  request.group = CommunicatorId(group);
  for (int32_t rank = 0; rank < world_size; ++rank) request.members.emplace_back(rank);
  request.round = round;
  return request;
}

// The replies to calls that are numbered by rank and round.
// Threads: the test's. Owns: the state.
class Asking {
 public:
  explicit Asking(int32_t world_size) : world_size_(world_size), state_(WorldSize(world_size)) {}

  uint64_t Ask(int32_t rank, uint64_t round, double when_ms, double timeout_ms = 60000) {
    const Call call{++last_call_, At(when_ms), At(when_ms + timeout_ms)};
    Outbox outbox;
    state_.Ask(call, Rank(rank), Question(world_size_, round), &outbox);
    Keep(outbox);
    return call.id;
  }
  void Expire(double when_ms) {
    Outbox outbox;
    state_.Expire(At(when_ms), &outbox);
    Keep(outbox);
  }
  void Leave(int32_t rank) {
    Outbox outbox;
    state_.Leave(Rank(rank), &outbox);
    Keep(outbox);
  }
  void Fail(const absl::Status& reason) {
    Outbox outbox;
    state_.Fail(reason, &outbox);
    Keep(outbox);
  }
  // Its peer; -1: not answered yet; -2: an error.
  int32_t PeerOf(uint64_t call) const {
    const auto found = replies_.find(call);
    if (found == replies_.end()) return -1;
    return found->second.status.ok() ? MatchIn(found->second).peer.value() : -2;
  }
  uint64_t NumberOf(uint64_t call) const { return MatchIn(replies_.at(call)).number; }
  absl::Status StatusOf(uint64_t call) const { return replies_.at(call).status; }
  ArrivalState& state() { return state_; }

 private:
  void Keep(const Outbox& outbox) {
    for (const Reply& reply : outbox.replies) {
      EXPECT_TRUE(replies_.emplace(reply.call, reply).second) << "answered twice";  // ONCE-1
    }
  }

  const int32_t world_size_;
  ArrivalState state_;
  uint64_t last_call_ = 0;
  std::map<uint64_t, Reply> replies_;
};

TEST(ArrivalStateTest, PairsRanksThatWaitWhateverTheirRounds) {
  Asking asking(2);
  const uint64_t one = asking.Ask(0, 7, 0);
  EXPECT_EQ(asking.PeerOf(one), -1);
  const uint64_t other = asking.Ask(1, 3, 10);
  EXPECT_EQ(asking.PeerOf(one), 1);
  EXPECT_EQ(asking.PeerOf(other), 0);
  EXPECT_EQ(asking.NumberOf(one), 1);
  EXPECT_EQ(asking.NumberOf(other), 1);
  EXPECT_EQ(asking.state().NextDeadline(), absl::InfiniteFuture());
  asking.Ask(0, 8, 20);
  EXPECT_EQ(asking.NumberOf(asking.Ask(1, 4, 21)), 2);
}

TEST(ArrivalStateTest, GoesOnAloneWhenNobodyComesInTime) {
  Asking asking(2);
  const uint64_t call = asking.Ask(0, 1, 0);
  EXPECT_EQ(asking.state().NextDeadline(), At(0) + ArrivalState::kFirstPatience);
  asking.Expire(999);
  EXPECT_EQ(asking.PeerOf(call), -1);
  asking.Expire(1000);
  EXPECT_EQ(asking.PeerOf(call), 0);
  // Half of its interval from then on.
  asking.Ask(1, 1, 1050);
  ASSERT_EQ(asking.PeerOf(asking.Ask(0, 2, 1100)), 1);
  asking.Ask(0, 3, 2050);
  EXPECT_EQ(asking.state().NextDeadline(), At(2050 + 475));
}

TEST(ArrivalStateTest, ACallThatIsRepeatedGetsTheSameDecision) {
  Asking asking(2);
  asking.Ask(0, 1, 0);
  const uint64_t lost = asking.Ask(1, 1, 1);
  const uint64_t again = asking.Ask(1, 1, 500);
  EXPECT_EQ(asking.PeerOf(again), 0);
  EXPECT_EQ(asking.NumberOf(again), asking.NumberOf(lost));
  EXPECT_THAT(asking.StatusOf(asking.Ask(1, 0, 501)).ToString(),
              HasSubstr("round: is 0, but rank 1 has asked for round 1 already"));
}

TEST(ArrivalStateTest, ARepeatedCallKeepsThePatienceAndEndsTheCallBefore) {
  Asking asking(2);
  const uint64_t first = asking.Ask(0, 1, 0);
  const uint64_t second = asking.Ask(0, 1, 700);
  EXPECT_EQ(asking.StatusOf(first).code(), absl::StatusCode::kAborted);
  asking.Expire(1000);
  EXPECT_EQ(asking.PeerOf(second), 0);
}

TEST(ArrivalStateTest, ACallIsAnsweredAtItsDeadline) {
  Asking asking(2);
  const uint64_t call = asking.Ask(0, 1, 0, 20);
  EXPECT_EQ(asking.state().NextDeadline(), At(20));
  asking.Expire(20);
  EXPECT_EQ(asking.PeerOf(call), 0);
}

TEST(ArrivalStateTest, WhoseCallIsCancelledIsPairedWithNobodyUntilItAsksAgain) {
  Asking asking(2);
  const uint64_t cancelled = asking.Ask(0, 1, 0);
  asking.state().Cancel(cancelled);
  const uint64_t waits = asking.Ask(1, 1, 1);
  EXPECT_EQ(asking.PeerOf(cancelled), -1);
  EXPECT_EQ(asking.PeerOf(waits), -1);
  const uint64_t again = asking.Ask(0, 1, 2);
  EXPECT_EQ(asking.PeerOf(again), 1);
  EXPECT_EQ(asking.PeerOf(waits), 0);
}

TEST(ArrivalStateTest, NobodyWaitsForARankThatHasLeft) {
  Asking asking(2);
  const uint64_t waits = asking.Ask(0, 1, 0);
  asking.Leave(1);
  EXPECT_EQ(asking.PeerOf(waits), 0);
  EXPECT_EQ(asking.PeerOf(asking.Ask(0, 2, 5)), 0) << "at once";
}

TEST(ArrivalStateTest, EveryCallThatWaitsIsToldOfAFailure) {
  Asking asking(3);
  const uint64_t call = asking.Ask(0, 4, 0);
  asking.Fail(absl::UnavailableError("rank 2 died"));
  EXPECT_EQ(asking.StatusOf(call).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(asking.StatusOf(call).ToString(), HasSubstr("waiting for a peer for round 4"));
  EXPECT_EQ(asking.state().NextDeadline(), absl::InfiniteFuture());
}

TEST(ArrivalStateTest, PrefersThePeerThatWasMetLongestAgo) {
  Asking asking(4);
  asking.Ask(0, 1, 0);
  asking.Ask(1, 1, 1);
  asking.Ask(2, 1, 2);
  asking.Ask(3, 1, 3);
  // 0 met 1, and 2 met 3: who met last waits for another one, in whichever order they come.
  const uint64_t zero = asking.Ask(0, 2, 100);
  const uint64_t one = asking.Ask(1, 2, 101);
  EXPECT_EQ(asking.PeerOf(zero), -1);
  EXPECT_EQ(asking.PeerOf(one), -1);
  const uint64_t three = asking.Ask(3, 2, 102);
  EXPECT_EQ(asking.PeerOf(three), 0);
  EXPECT_EQ(asking.PeerOf(asking.Ask(2, 2, 103)), 1);
}

TEST(ArrivalStateTest, WhoMetLastMeetAgainWhenNobodyElseComes) {
  Asking asking(3);
  asking.Ask(0, 1, 0);
  asking.Ask(1, 1, 1);
  const uint64_t zero = asking.Ask(0, 2, 600);
  const uint64_t one = asking.Ask(1, 2, 601);
  // Rank 2 may still come, which they have not met.
  asking.Expire(899);
  EXPECT_EQ(asking.PeerOf(zero), -1);
  asking.Expire(900);
  EXPECT_EQ(asking.PeerOf(zero), 1);
  EXPECT_EQ(asking.PeerOf(one), 0);
  // It never came, and is not expected any more.
  asking.Ask(0, 3, 1200);
  EXPECT_EQ(asking.PeerOf(asking.Ask(1, 3, 1201)), 0);
}

TEST(ArrivalStateTest, ModelsOfOneGroupDoNotMeet) {
  ArrivalState state(WorldSize(2));
  Outbox outbox;
  state.Ask({1, At(0), At(5000)}, Rank(0), Question(2, 1, 1), &outbox);
  state.Ask({2, At(1), At(5000)}, Rank(1), Question(2, 1, 2), &outbox);
  EXPECT_TRUE(outbox.replies.empty());
  state.Ask({3, At(2), At(5000)}, Rank(1), Question(2, 1, 1), &outbox);
  EXPECT_EQ(outbox.replies.size(), 2);
}

TEST(ArrivalStateTest, ForgetsTheGroupThatWasUsedLeastLatelyAndNoneThatWaits) {
  ArrivalState state(WorldSize(2));
  Outbox outbox;
  uint64_t call = 0;
  const auto ask = [&](int32_t rank, uint64_t round, uint32_t group) {
    state.Ask({++call, At(0), At(5000)}, Rank(rank), Question(2, round, group), &outbox);
  };
  ask(0, 9, 1);  // waits
  for (uint32_t group = 2; group < 600; ++group) {
    ask(0, 9, group);
    ask(1, 9, group);
  }
  for (const Reply& reply : outbox.replies) EXPECT_TRUE(reply.status.ok()) << reply.status;
  ask(0, 8, 1);
  EXPECT_EQ(outbox.replies.back().status.code(), absl::StatusCode::kOutOfRange) << "it is kept";
  const size_t replies = outbox.replies.size();
  ask(0, 8, 2);
  EXPECT_EQ(outbox.replies.size(), replies) << "it begins anew, and waits";
}

TEST(ArrivalStateTest, RefusesQuestionsThatMakeNoSense) {
  ArrivalState state(WorldSize(3));
  const auto error = [&](std::vector<int32_t> members) {
    FindPeerRequest request = Question(0, 1);
    for (int32_t member : members) request.members.emplace_back(member);
    Outbox outbox;
    state.Ask({1, At(0), At(0)}, Rank(0), request, &outbox);
    return outbox.replies.empty() ? "" : outbox.replies[0].status.ToString();
  };
  EXPECT_THAT(error({0, 3}), HasSubstr("members: "));
  EXPECT_THAT(error({0, 0}), HasSubstr("members: "));
  EXPECT_THAT(error({1, 2}), HasSubstr("members: "));
  EXPECT_THAT(error({}), HasSubstr("members: "));
  EXPECT_EQ(error({0, 1}), "OK");
  EXPECT_THAT(error({0, 1, 2}), HasSubstr("communicator 1 is that of rank 0, 1"));
}

// A rank that trains: it asks at the beginning of a step and needs the answer for the last
// `serial` of it.
struct Trainer {
  double interval_ms = 100;
  double begins_ms = 0;
  double jitter = 0;     // of each step, as a share of it
  double serial = 0;     // of each step: 1 leaves nothing to do beside waiting
  double ends_ms = 1e9;  // leaves the job then
};

struct Life {
  int rounds = 0;
  int paired = 0;
  double waited_ms = 0;
  std::vector<double> intervals;
  std::map<int32_t, int> met;  // times, by peer
};

// Runs trainers against a state in virtual time, and checks each decision.
// Threads: the test's. Owns: state and lives.
class Simulation {
 public:
  Simulation(std::vector<Trainer> trainers, uint64_t seed)
      : trainers_(std::move(trainers)),
        random_(seed),
        state_(WorldSize(static_cast<int32_t>(trainers_.size()))),
        lives_(trainers_.size()),
        asked_ms_(trainers_.size()),
        calls_(trainers_.size()) {
    for (const Trainer& trainer : trainers_) next_ms_.push_back(trainer.begins_ms);
  }

  const std::vector<Life>& RunUntil(double end_ms) {
    while (true) {
      const auto next = std::min_element(next_ms_.begin(), next_ms_.end());
      const double expiry_ms = absl::ToDoubleMilliseconds(state_.NextDeadline() - At(0));
      if (std::min(*next, expiry_ms) > end_ms) return lives_;
      if (expiry_ms <= *next) {
        now_ms_ = expiry_ms;
        Outbox outbox;
        state_.Expire(At(now_ms_), &outbox);
        Take(outbox);
      } else {
        Ask(static_cast<int32_t>(next - next_ms_.begin()));
      }
    }
  }
  // Counts from now on.
  void Forget() {
    for (Life& life : lives_) life.rounds = life.paired = 0;
  }

 private:
  static constexpr double kNever = 1e18;

  void Ask(int32_t rank) {
    const auto place = static_cast<size_t>(rank);
    now_ms_ = next_ms_[place];
    next_ms_[place] = kNever;
    Outbox outbox;
    if (now_ms_ >= trainers_[place].ends_ms) {
      state_.Leave(Rank(rank), &outbox);
    } else {
      Life& life = lives_[place];
      if (rounds_[rank] > 0) life.intervals.push_back(now_ms_ - asked_ms_[place]);
      asked_ms_[place] = now_ms_;
      EXPECT_FALSE(calls_[place].has_value());
      calls_[place] = ++last_call_;
      const Call call{last_call_, At(now_ms_), At(now_ms_ + 60000)};
      state_.Ask(call, Rank(rank),
                 Question(static_cast<int32_t>(trainers_.size()), ++rounds_[rank]), &outbox);
    }
    Take(outbox);
  }

  void Take(const Outbox& outbox) {
    for (const Reply& reply : outbox.replies) {
      EXPECT_TRUE(reply.status.ok()) << reply.status;
      const auto call = std::find(calls_.begin(), calls_.end(), reply.call);
      ASSERT_NE(call, calls_.end());
      call->reset();
      Answered(static_cast<int32_t>(call - calls_.begin()), MatchIn(reply));
    }
    // Both ends are answered by one event.
    for (const auto& [number, ends] : open_) {
      ADD_FAILURE() << "half of match " << number << ", of rank " << ends.first;
    }
  }

  void Answered(int32_t rank, const PeerMatch& match) {
    const auto place = static_cast<size_t>(rank);
    Life& life = lives_[place];
    ++life.rounds;
    const int32_t peer = match.peer.value();
    if (peer != rank) {
      ++life.paired;
      ++life.met[peer];
      const auto other = open_.find(match.number);
      if (other == open_.end()) {
        open_.emplace(match.number, std::pair(rank, peer));
      } else {
        EXPECT_EQ(other->second, std::pair(peer, rank)) << "match " << match.number;
        open_.erase(other);
      }
    }
    const double waited_ms = now_ms_ - asked_ms_[place];
    EXPECT_LE(waited_ms, PatienceOf(life) + 1e-3) << "rank " << rank;
    life.waited_ms += waited_ms;
    const Trainer& trainer = trainers_[place];
    std::uniform_real_distribution<double> factor(1 - trainer.jitter, 1 + trainer.jitter);
    const double step_ms = trainer.interval_ms * factor(random_);
    next_ms_[place] = std::max(asked_ms_[place] + step_ms, now_ms_ + trainer.serial * step_ms);
  }

  static double PatienceOf(const Life& life) {
    if (life.intervals.empty()) return 1000;
    std::vector<double> last(life.intervals.end() - static_cast<std::ptrdiff_t>(
                                                        std::min<size_t>(life.intervals.size(), 5)),
                             life.intervals.end());
    std::sort(last.begin(), last.end());
    return std::clamp(last[(last.size() - 1) / 2] / 2, 1.0, 5000.0);
  }

  const std::vector<Trainer> trainers_;
  std::mt19937_64 random_;
  ArrivalState state_;
  std::vector<Life> lives_;
  std::vector<double> asked_ms_;
  std::vector<double> next_ms_;
  std::vector<std::optional<uint64_t>> calls_;
  std::map<int32_t, uint64_t> rounds_;
  std::map<uint64_t, std::pair<int32_t, int32_t>> open_;  // matches of which one end is answered
  double now_ms_ = 0;
  uint64_t last_call_ = 0;
};

double PairedShare(const std::vector<Life>& lives) {
  double rounds = 0, paired = 0;
  for (const Life& life : lives) {
    rounds += life.rounds;
    paired += life.paired;
  }
  return paired / rounds;
}

// One of two ranks of one pace comes within half an interval of the other.
TEST(ArrivalStateTest, TwoEquallyFastRanksMeetInEveryRoundWhateverTheirPhases) {
  for (int phase_ms = 0; phase_ms < 100; phase_ms += 7) {
    for (double serial : {0.0, 0.3, 1.0}) {
      SCOPED_TRACE(absl::StrCat("phase ", phase_ms, ", serial ", serial));
      Simulation simulation(
          {{.begins_ms = 0, .serial = serial}, {.begins_ms = phase_ms * 1.0, .serial = serial}}, 1);
      simulation.RunUntil(1000);
      simulation.Forget();
      EXPECT_EQ(PairedShare(simulation.RunUntil(5000)), 1);
    }
  }
}

TEST(ArrivalStateTest, EquallyFastRanksArePairedNearlyAlwaysAndMeetEverybody) {
  for (int32_t size : {2, 3, 4, 5, 6, 8, 9, 16}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(absl::StrCat(size, " ranks, seed ", seed));
      std::mt19937_64 random(seed);
      std::vector<Trainer> trainers;
      for (int32_t rank = 0; rank < size; ++rank) {
        trainers.push_back({.begins_ms = static_cast<double>(random() % 100),
                            .jitter = 0.05,
                            .serial = static_cast<double>(seed % 3) / 2});
      }
      Simulation simulation(std::move(trainers), seed);
      simulation.RunUntil(2000);
      simulation.Forget();
      const std::vector<Life>& lives = simulation.RunUntil(12000);
      // With an odd number of ranks one has nobody.
      const double most = static_cast<double>(size / 2 * 2) / size;
      EXPECT_GE(PairedShare(lives), 0.9 * most);
      for (const Life& life : lives) {
        EXPECT_GE(static_cast<int32_t>(life.met.size()), std::min(size - 1, 8));
      }
    }
  }
}

TEST(ArrivalStateTest, FastRanksKeepTheirPaceBesideASlowOneThatIsMetInEveryRound) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::vector<Trainer> trainers(3, {.interval_ms = 10, .jitter = 0.1, .serial = 0.5});
    trainers.push_back({.interval_ms = 160, .jitter = 0.1, .serial = 0.5});
    Simulation simulation(std::move(trainers), seed);
    simulation.RunUntil(3000);
    simulation.Forget();
    const std::vector<Life>& lives = simulation.RunUntil(13000);
    for (size_t rank = 0; rank < 3; ++rank) EXPECT_GT(lives[rank].rounds, 950) << rank;
    EXPECT_GT(lives[3].rounds, 58);
    EXPECT_GE(lives[3].paired, 0.95 * lives[3].rounds);
  }
}

TEST(ArrivalStateTest, AFastRankIsNotHeldUpByTheOnlyOtherOneThatIsSlow) {
  Simulation simulation({{.interval_ms = 10, .serial = 1}, {.interval_ms = 160, .serial = 1}}, 1);
  simulation.RunUntil(3000);
  simulation.Forget();
  const std::vector<Life>& lives = simulation.RunUntil(13000);
  // While the slow one may come, a quarter of the time, its steps take half as long again.
  EXPECT_GT(lives[0].rounds, 880);
  EXPECT_EQ(lives[1].paired, lives[1].rounds);
}

TEST(ArrivalStateTest, HoldsForRanksOfAnySpeedThatComeAndGo) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    std::vector<Trainer> trainers(1 + random() % 9);
    for (Trainer& trainer : trainers) {
      trainer.interval_ms = 1 + static_cast<double>(random() % 200);
      trainer.begins_ms = static_cast<double>(random() % 2000);
      trainer.jitter = static_cast<double>(random() % 10) / 10;
      trainer.serial = static_cast<double>(random() % 3) / 2;
      if (random() % 4 == 0)
        trainer.ends_ms = trainer.begins_ms + static_cast<double>(random() % 3000);
    }
    Simulation simulation(std::move(trainers), seed);
    simulation.RunUntil(5000);
  }
}

}  // namespace
}  // namespace pelton
