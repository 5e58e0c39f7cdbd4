#include "comm/control/peer_selection_state.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kWorldSize = 6;

SelectPeersRequest Question(PeerPolicy policy, uint64_t step,
                            std::vector<int32_t> members = {0, 1, 2, 3, 4, 5}, uint32_t group = 1) {
  SelectPeersRequest request;
  request.group = CommunicatorId(group);
  for (int32_t member : members) request.members.emplace_back(member);
  request.policy = policy;
  request.step = step;
  return request;
}

TEST(PeerSelectionStateTest, GivesEveryMemberTheSameAnswer) {
  for (PeerPolicy policy : {PeerPolicy::kRandomMatching, PeerPolicy::kLatencyAware}) {
    PeerSelectionState state(WorldSize(kWorldSize), 1);
    for (uint64_t step = 0; step < 40; ++step) {
      const Matching first = *state.Select(Rank(3), Question(policy, step));
      for (int32_t rank = 0; rank < kWorldSize; ++rank) {
        // What is measured in between changes no answer that was given.
        state.SetRoundTrip(Rank(rank), absl::Milliseconds((rank * 7 + step) % 11));
        EXPECT_EQ(*state.Select(Rank(rank), Question(policy, step)), first);
      }
    }
  }
}

TEST(PeerSelectionStateTest, RandomMatchingFollowsTheSeedAndTheStep) {
  PeerSelectionState state(WorldSize(kWorldSize), 1);
  PeerSelectionState again(WorldSize(kWorldSize), 1);
  PeerSelectionState other(WorldSize(kWorldSize), 2);
  int same_step = 0;
  int same_seed = 0;
  Matching last;
  for (uint64_t step = 0; step < 30; ++step) {
    const SelectPeersRequest question = Question(PeerPolicy::kRandomMatching, step);
    const Matching matching = *state.Select(Rank(0), question);
    EXPECT_EQ(matching, *again.Select(Rank(1), question));
    same_seed += matching == *other.Select(Rank(0), question);
    same_step += matching == last;
    last = matching;
  }
  // Six ranks have 15 matchings.
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(same_step, 10);
}

TEST(PeerSelectionStateTest, LatencyAwarePairsRanksAsFarAway) {
  PeerSelectionState state(WorldSize(kWorldSize), 1);
  for (int32_t rank : {0, 2, 4}) state.SetRoundTrip(Rank(rank), absl::Milliseconds(50 + rank));
  for (int32_t rank : {1, 3, 5}) state.SetRoundTrip(Rank(rank), absl::Milliseconds(1 + rank));
  // In order: 1, 3, 5, 0, 2, 4. Odd steps pair the others.
  EXPECT_THAT(*state.Select(Rank(0), Question(PeerPolicy::kLatencyAware, 0)),
              ElementsAre(5, 3, 4, 1, 2, 0));
  EXPECT_THAT(*state.Select(Rank(0), Question(PeerPolicy::kLatencyAware, 1)),
              ElementsAre(2, 1, 0, 5, 4, 3));
}

TEST(PeerSelectionStateTest, ForgetsStepsThatAreLongOver) {
  PeerSelectionState state(WorldSize(kWorldSize), 1);
  for (uint64_t step = 0; step < 100; ++step) {
    ASSERT_TRUE(state.Select(Rank(0), Question(PeerPolicy::kRandomMatching, step)).ok());
  }
  const absl::Status status =
      state.Select(Rank(1), Question(PeerPolicy::kRandomMatching, 3)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("step: 3 is forgotten; kept are 84 to 99"));
  EXPECT_TRUE(state.Select(Rank(1), Question(PeerPolicy::kRandomMatching, 90)).ok());
}

TEST(PeerSelectionStateTest, ModelsOfTheSameRanksCountTheirOwnSteps) {
  PeerSelectionState state(WorldSize(kWorldSize), 1);
  const auto ask = [&](uint32_t group, uint64_t step) {
    return state.Select(Rank(0),
                        Question(PeerPolicy::kRandomMatching, step, {0, 1, 2, 3, 4, 5}, group));
  };
  for (uint64_t step = 0; step < 20; ++step) ASSERT_TRUE(ask(1, step).ok());
  EXPECT_EQ(ask(1, 0).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(ask(2, 0).ok()) << "another model begins";
}

TEST(PeerSelectionStateTest, ForgetsTheGroupThatWasUsedLeastLately) {
  PeerSelectionState state(WorldSize(kWorldSize), 1);
  const auto ask = [&](uint32_t group, uint64_t step) {
    return state.Select(Rank(0), Question(PeerPolicy::kRandomMatching, step, {0, 1}, group));
  };
  for (uint32_t group = 0; group <= PeerSelectionState::kGroupsKept; ++group) {
    for (uint64_t step = 50; step < 70; ++step) ASSERT_TRUE(ask(group, step).ok());
  }
  // An old step is refused where the group is known, and begins anew where it is not.
  EXPECT_FALSE(ask(PeerSelectionState::kGroupsKept, 0).ok());
  EXPECT_TRUE(ask(0, 0).ok());
}

TEST(PeerSelectionStateTest, RefusesQuestionsThatMakeNoSense) {
  PeerSelectionState state(WorldSize(kWorldSize), 1);
  const auto error = [&](const SelectPeersRequest& request) {
    return state.Select(Rank(0), request).status().ToString();
  };
  EXPECT_THAT(error(Question(PeerPolicy::kRandomMatching, 0, {0, 6})), HasSubstr("members: "));
  EXPECT_THAT(error(Question(PeerPolicy::kRandomMatching, 0, {0, 0})), HasSubstr("members: "));
  EXPECT_THAT(error(Question(PeerPolicy::kRandomMatching, 0, {1, 2})), HasSubstr("members: "));
  EXPECT_THAT(error(Question(PeerPolicy::kRandomMatching, 0, {})), HasSubstr("members: "));
  EXPECT_THAT(error(Question(static_cast<PeerPolicy>(9), 0)),
              HasSubstr("policy: 9 is not one of: random_matching"));
  EXPECT_THAT(error(Question(PeerPolicy::kAvoidStragglers, 0)), HasSubstr("policy: 3 is not"));
}

}  // namespace
}  // namespace pelton
