#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "backend/peer_selector.h"
#include "backend/test_control.h"
#include "comm/control/in_process_control.h"
#include "core/base/clock.h"
#include "core/base/moving_deadline.h"
#include "core/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Answers one question after the other with what it was told to, and the rest with the last of it.
// Threads: any. Owns: the answers.
class ScriptedControl final : public SilentControl {
 public:
  explicit ScriptedControl(std::deque<absl::StatusOr<PeerMatch>> answers)
      : answers_(std::move(answers)) {}

  absl::StatusOr<ControlAnswer> Ask(ControlQuestion question, absl::Time) override {
    MutexLock lock(&mutex_);
    rounds_.push_back(std::get<FindPeerRequest>(question).round);
    absl::StatusOr<PeerMatch> answer = answers_.front();
    if (answers_.size() > 1) answers_.pop_front();
    return answer;
  }
  std::vector<uint64_t> rounds() {
    MutexLock lock(&mutex_);
    return rounds_;
  }

 private:
  Mutex mutex_;
  std::deque<absl::StatusOr<PeerMatch>> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> rounds_ ABSL_GUARDED_BY(mutex_);
};

// A matchmaker of rank 5 of ranks 3, 5 and 7, and who sleeps until it wakes it.
// Threads: any. Owns: both.
class Sleeper {
 public:
  explicit Sleeper(Control& control, std::vector<int32_t> members = {3, 5, 7}, int32_t self = 5,
                   absl::Duration timeout = kPatience, const Standstill* standstill = nullptr) {
    MatchOptions options;
    options.question.group = CommunicatorId(1);
    for (int32_t member : members) options.question.members.emplace_back(member);
    options.self = Rank(self);
    options.timeout = timeout;
    options.standstill = standstill;
    options.wake = [this] {
      MutexLock lock(&mutex_);
      is_awake_ = true;
      woken_.SignalAll();
    };
    matchmaker_ =
        std::make_unique<ArrivalMatchmaker>(ActorRef<Actor>(), control, std::move(options));
  }
  ~Sleeper() { matchmaker_.reset(); }

  void Ask(uint64_t round) { matchmaker_->Ask(Round(round)); }
  // Sleeps until it is woken; what it finds then.
  absl::StatusOr<std::optional<Rank>> Await() {
    {
      MutexLock lock(&mutex_);
      const absl::Time deadline = Clock::Real().Now() + kPatience;
      while (!is_awake_ && !woken_.WaitWithDeadline(&mutex_, deadline)) {
      }
      EXPECT_TRUE(is_awake_);
      is_awake_ = false;
    }
    return matchmaker_->Answer();
  }
  absl::StatusOr<std::optional<Rank>> Find(uint64_t round) {
    Ask(round);
    return Await();
  }

 private:
  Mutex mutex_;
  CondVar woken_;
  bool is_awake_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ArrivalMatchmaker> matchmaker_;
};

TEST(ArrivalMatchmakerTest, WakesWhoeverAskedWithTheAnswer) {
  ScriptedControl control({PeerMatch{Rank(2), 1}, PeerMatch{Rank(1), 2}});
  Sleeper sleeper(control);
  EXPECT_EQ(**sleeper.Find(4), Rank(2));
  EXPECT_EQ(**sleeper.Find(5), Rank(1)) << "alone";
  EXPECT_THAT(control.rounds(), ElementsAre(4, 5));
}

TEST(ArrivalMatchmakerTest, RepeatsACallWhoseAnswerIsLost) {
  const absl::Status lost = absl::DeadlineExceededError("the coordinator did not answer in time");
  ScriptedControl control({lost, lost, PeerMatch{Rank(0), 1}});
  Sleeper sleeper(control);
  EXPECT_EQ(**sleeper.Find(4), Rank(0));
  EXPECT_THAT(control.rounds(), ElementsAre(4, 4, 4));
}

TEST(ArrivalMatchmakerTest, AnAnswerThatNeverComesIsAnErrorThatNamesRankAndRound) {
  ScriptedControl control({absl::DeadlineExceededError("the coordinator at x did not answer")});
  Sleeper sleeper(control, {3, 5, 7}, 5, absl::Milliseconds(20));
  const absl::Status status = sleeper.Find(9).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.ToString(),
              HasSubstr("rank 5, round 9: the coordinator's choice of a peer, asked for within "
                        "20ms: the coordinator at x did not answer"));
}

// As if a rank had been awaited for an hour meanwhile.
class StandingControl final : public SilentControl {
 public:
  explicit StandingControl(Standstill& standstill) : standstill_(standstill) {}
  absl::StatusOr<ControlAnswer> Ask(ControlQuestion, absl::Time) override {
    if (std::exchange(has_asked_, true)) return PeerMatch{Rank(2), 1};
    const absl::Time now = Clock::Real().Now();
    standstill_.Begin(now - absl::Hours(1));
    standstill_.End(now);
    return absl::DeadlineExceededError("lost");
  }

 private:
  Standstill& standstill_;
  bool has_asked_ = false;
};

TEST(ArrivalMatchmakerTest, TheTimeStandsStillWhileARankIsAwaited) {
  Standstill standstill;
  StandingControl control(standstill);
  Sleeper sleeper(control, {3, 5, 7}, 5, absl::ZeroDuration(), &standstill);
  EXPECT_EQ(**sleeper.Find(4), Rank(2));
}

TEST(ArrivalMatchmakerTest, OtherErrorsAreNotRepeated) {
  ScriptedControl control({absl::UnavailableError("rank 3 died")});
  Sleeper sleeper(control);
  EXPECT_THAT(sleeper.Find(9).status().ToString(), HasSubstr("rank 3 died"));
  EXPECT_THAT(control.rounds(), ElementsAre(9));
}

TEST(ArrivalMatchmakerTest, RefusesAPeerThatIsNoMember) {
  ScriptedControl control({PeerMatch{Rank(3), 1}});
  Sleeper sleeper(control);
  EXPECT_THAT(sleeper.Find(1).status().ToString(), HasSubstr("is 3, which is none of its 3"));
}

TEST(ArrivalMatchmakerTest, TwoRanksOfUnequalRoundsFindEachOther) {
  const auto coordinator = InProcessCoordinator::Make(Clock::Real());
  const auto controls = coordinator->MakeWorld("job", WorldSize(2));
  Sleeper zero(*controls[0], {0, 1}, 0);
  Sleeper one(*controls[1], {0, 1}, 1);
  zero.Ask(17);
  one.Ask(3);
  EXPECT_EQ(**zero.Await(), Rank(1));
  EXPECT_EQ(**one.Await(), Rank(0));
}

TEST(ArrivalMatchmakerTest, GoesOnAloneWithARealClockWhenNobodyComes) {
  const auto coordinator = InProcessCoordinator::Make(Clock::Real());
  const auto controls = coordinator->MakeWorld("job", WorldSize(2));
  Sleeper zero(*controls[0], {0, 1}, 0);
  EXPECT_EQ(**zero.Find(1), Rank(0));
}

}  // namespace
}  // namespace pelton
