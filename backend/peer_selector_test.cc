#include "backend/peer_selector.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "backend/test_control.h"
#include "comm/control/in_process_control.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kLooks = 1000;  // for one answer, before the next question

SelectPeersRequest Question(std::vector<int32_t> members) {
  SelectPeersRequest question;
  for (int32_t member : members) question.members.emplace_back(member);
  return question;
}

// Answers every question with what it was told to, and counts them.
// Threads: any. Owns: the answer.
class FixedControl final : public SilentControl {
 public:
  explicit FixedControl(absl::StatusOr<ControlAnswer> answer) : answer_(std::move(answer)) {}

  absl::StatusOr<ControlAnswer> Ask(ControlQuestion question, absl::Time) override {
    MutexLock lock(&mutex_);
    last_step_ = std::get<SelectPeersRequest>(question).step;
    asked_.SignalAll();
    return answer_;
  }
  // Returns once a question for `step` has been asked: questions before it have been answered.
  void AwaitQuestion(uint64_t step) {
    MutexLock lock(&mutex_);
    while (last_step_ != step) {
      ASSERT_FALSE(asked_.WaitWithDeadline(&mutex_, Clock::Real().Now() + kPatience));
    }
  }

 private:
  Mutex mutex_;
  CondVar asked_;
  const absl::StatusOr<ControlAnswer> answer_;
  std::optional<uint64_t> last_step_ ABSL_GUARDED_BY(mutex_);
};

// The answer for step 0, with the question after it asked already.
std::optional<Rank> AnswerFor(absl::StatusOr<ControlAnswer> answer) {
  FixedControl control(std::move(answer));
  PeerSelector selector({}, control, Question({3, 5, 7}), Rank(5));
  selector.Prefetch(0);
  control.AwaitQuestion(0);
  selector.Prefetch(1);
  control.AwaitQuestion(1);
  return selector.PeerAt(0);
}

TEST(PeerSelectorTest, GivesThePlaceOfThePeerInTheGroup) {
  EXPECT_EQ(AnswerFor(Matching{1, 0, 2}), Rank(0));
  EXPECT_EQ(AnswerFor(Matching{0, 1, 2}), Rank(1)) << "sits out";
}

TEST(PeerSelectorTest, LacksAnswersThatDoNotComeOrMakeNoSense) {
  EXPECT_EQ(AnswerFor(absl::UnavailableError("lost")), std::nullopt);
  EXPECT_EQ(AnswerFor(PeerMatch{Rank(0), 1}), std::nullopt) << "to another question";
  EXPECT_EQ(AnswerFor(Matching{1, 0}), std::nullopt) << "of another group";
  EXPECT_EQ(AnswerFor(Matching{1, 3, 2}), std::nullopt) << "outside the group";
  EXPECT_EQ(AnswerFor(Matching{1, 2, 0}), std::nullopt) << "not the same on both ends";
}

TEST(PeerSelectorTest, LacksWhatItWasNotToldToFetch) {
  FixedControl control(Matching{0});
  PeerSelector selector({}, control, Question({0}), Rank(0));
  EXPECT_EQ(selector.PeerAt(0), std::nullopt);
}

std::vector<std::string>& Lines() {
  static std::vector<std::string> lines;
  return lines;
}

TEST(PeerSelectorTest, TheFirstErrorIsTold) {
  SetLogSink([](LogLevel, absl::string_view line) { Lines().emplace_back(line); });
  FixedControl control(absl::OutOfRangeError("step: is forgotten"));
  PeerSelector selector({}, control, Question({3, 5, 7}), Rank(5));
  for (uint64_t step = 0; step < 3; ++step) {
    selector.Prefetch(step);
    control.AwaitQuestion(step);
    selector.Prefetch(step + 1);
    control.AwaitQuestion(step + 1);
    EXPECT_EQ(selector.PeerAt(step), std::nullopt);
  }
  SetLogSink(nullptr);
  EXPECT_THAT(Lines(), ElementsAre("rank 5: the coordinator has chosen no peers for round 1: "
                                   "step: is forgotten; all ranks follow shift_one in such a "
                                   "round, and only the first is told"));
}

class Boss : public Actor {};

// Breaks at the first question.
// Threads: any. Owns: nothing.
class BreakingControl final : public SilentControl {
 public:
  absl::StatusOr<ControlAnswer> Ask(ControlQuestion, absl::Time) override {
    if (!std::exchange(is_broken_, true)) throw std::runtime_error("out of memory");
    return Matching{1, 0};
  }

 private:
  bool is_broken_ = false;
};

TEST(PeerSelectorTest, AnAskerThatFailsIsRestartedAndAnswersAgain) {
  ThreadExecutor executor;
  const auto boss = Spawn<Boss>(executor, {});
  BreakingControl control;
  PeerSelector selector(boss, control, Question({3, 5}), Rank(5));
  selector.Prefetch(0);
  const absl::Time deadline = Clock::Real().Now() + kPatience;
  std::optional<Rank> peer;
  EXPECT_EQ(selector.PeerAt(0), std::nullopt);
  // A question that comes between the failure and the restart has no answer, either.
  for (uint64_t step = 1; !peer.has_value() && Clock::Real().Now() < deadline; ++step) {
    selector.Prefetch(step);
    for (int look = 0; look < kLooks && !peer.has_value(); ++look) {
      std::this_thread::yield();
      peer = selector.PeerAt(step);
    }
  }
  EXPECT_EQ(peer, Rank(0));
  EXPECT_TRUE(boss.alive());
}

TEST(PeerSelectorTest, BothEndsHearTheSame) {
  const auto coordinator = InProcessCoordinator::Make(Clock::Real());
  const auto controls = coordinator->MakeWorld("job", WorldSize(4));
  std::vector<std::unique_ptr<PeerSelector>> selectors;
  for (int32_t rank = 0; rank < 4; ++rank) {
    selectors.push_back(std::make_unique<PeerSelector>(ActorRef<Actor>(),
                                                       *controls[static_cast<size_t>(rank)],
                                                       Question({0, 1, 2, 3}), Rank(rank)));
  }
  const absl::Time deadline = Clock::Real().Now() + kPatience;
  for (uint64_t step = 0; step < 8; ++step) {
    std::vector<Rank> peers;
    for (auto& selector : selectors) {
      selector->Prefetch(step);
      std::optional<Rank> peer;
      while (!peer.has_value() && Clock::Real().Now() < deadline) {
        std::this_thread::yield();
        peer = selector->PeerAt(step);
      }
      ASSERT_TRUE(peer.has_value());
      peers.push_back(*peer);
    }
    for (int32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(peers[static_cast<size_t>(peers[static_cast<size_t>(rank)].value())], Rank(rank));
    }
  }
  selectors.clear();
}

}  // namespace
}  // namespace pelton
