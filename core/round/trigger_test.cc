#include "core/round/trigger.h"

#include <initializer_list>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Action = RoundAction;
using Kind = EventKind;

TrainingEvent Event(Kind kind) {
  TrainingEvent event;
  event.kind = kind;
  return event;
}

TrainingEvent Local(Kind kind) {
  TrainingEvent event = Event(kind);
  event.is_synchronized = false;
  return event;
}

TrainingEvent Recomputed(Kind kind) {
  TrainingEvent event = Event(kind);
  event.is_recomputed = true;
  return event;
}

// Of the optimizer with that number, where two are given.
TrainingEvent Step(Kind kind, uint64_t optimizer) {
  TrainingEvent event = Event(kind);
  event.optimizer = optimizer;
  event.given_count = 2;
  return event;
}

TrainingEvent BackwardEnds(bool may_go_on) {
  TrainingEvent event = Event(Kind::kBackwardEnds);
  event.may_go_on = may_go_on;
  return event;
}

Trigger Make(Schedule schedule, bool makes_equal = true) {
  return Trigger(schedule, makes_equal, 0, false);
}

// What all of them together make due.
std::vector<Action> On(Trigger& trigger, std::initializer_list<TrainingEvent> events) {
  std::vector<Action> due;
  for (const TrainingEvent& event : events) {
    for (Action action : trigger.On(event)) due.push_back(action);
  }
  return due;
}

Trigger EachStep() { return Make({.trigger = TriggerKind::kAfterStep}); }
Trigger InForward(uint64_t interval = 1) {
  return Make({.trigger = TriggerKind::kInForward, .interval = interval});
}
Trigger ByTimer() { return Make({.trigger = TriggerKind::kTimer}); }

const TrainingEvent kForward = Event(Kind::kForwardBegins);
const TrainingEvent kBackward = Event(Kind::kBackwardBegins);
const TrainingEvent kBefore = Event(Kind::kBeforeStep);
const TrainingEvent kAfter = Event(Kind::kAfterStep);

TEST(TriggerTest, WhenReadyAsksForNothingBecauseTensorsAreMarkedThemselves) {
  Trigger trigger = Make({.trigger = TriggerKind::kWhenReady});
  EXPECT_THAT(On(trigger, {kForward, kBackward, BackwardEnds(false), kBefore, kAfter}), IsEmpty());
}

TEST(TriggerTest, OnCallHasARoundForEachCallAndForNothingElse) {
  Trigger trigger = Make({.trigger = TriggerKind::kOnCall});
  EXPECT_THAT(On(trigger, {kForward, kBackward, BackwardEnds(false), kBefore, kAfter}), IsEmpty());
  EXPECT_THAT(On(trigger, {Event(Kind::kCall)}), ElementsAre(Action::kBegin, Action::kFinish));
}

TEST(AfterStepTriggerTest, BeginsAtTheFirstStepAndEveryIntervalFromThere) {
  Trigger trigger = Make({.trigger = TriggerKind::kAfterStep, .first_step = 2, .interval = 3});
  std::vector<uint64_t> rounds_at;
  for (int i = 0; i < 9; ++i) {
    const std::vector<Action> due = On(trigger, {kForward, kBackward, kBefore, kAfter});
    EXPECT_EQ(trigger.tensors_are_equal(), !due.empty());
    if (due.empty()) continue;
    EXPECT_THAT(due, ElementsAre(Action::kBegin, Action::kFinish));
    rounds_at.push_back(trigger.steps());
  }
  EXPECT_THAT(rounds_at, ElementsAre(2, 5, 8));
}

TEST(AfterStepTriggerTest, ADelayedRoundEndsSoManyStepsLater) {
  Trigger trigger =
      Make({.trigger = TriggerKind::kAfterStep, .first_step = 3, .interval = 3, .delay = 2}, false);
  EXPECT_THAT(On(trigger, {kAfter, kAfter, kAfter}), ElementsAre(Action::kBegin));
  EXPECT_THAT(On(trigger, {kAfter}), IsEmpty());
  EXPECT_THAT(On(trigger, {kAfter}), ElementsAre(Action::kFinish));
  EXPECT_THAT(On(trigger, {kAfter}), ElementsAre(Action::kBegin));
  EXPECT_FALSE(trigger.tensors_are_equal());
}

TEST(AfterStepTriggerTest, ARoundThatWasEndedOtherwiseIsNotEndedAgain) {
  Trigger trigger = Make({.trigger = TriggerKind::kAfterStep, .interval = 3, .delay = 1});
  EXPECT_THAT(On(trigger, {kAfter}), ElementsAre(Action::kBegin));
  trigger.RoundEnded();
  EXPECT_THAT(On(trigger, {kAfter}), IsEmpty());
}

TEST(AfterStepTriggerTest, GoesOnFromTheStepsOfBeforeWithTheRoundThatWasOpen) {
  Trigger trigger({.trigger = TriggerKind::kAfterStep, .first_step = 4, .interval = 4, .delay = 2},
                  true, 9,
                  true);  // begun at 8
  EXPECT_THAT(On(trigger, {kAfter}), ElementsAre(Action::kFinish));
  EXPECT_THAT(On(trigger, {kAfter, kAfter}), ElementsAre(Action::kBegin));
  EXPECT_EQ(trigger.steps(), 12);
}

TEST(AfterStepTriggerTest, CountsAStepOnceAllOptimizersHaveStepped) {
  Trigger trigger = EachStep();
  EXPECT_THAT(On(trigger, {Step(Kind::kAfterStep, 1)}), IsEmpty());
  EXPECT_THAT(On(trigger, {Step(Kind::kBeforeStep, 2), Step(Kind::kAfterStep, 2)}),
              ElementsAre(Action::kBegin, Action::kFinish));
  EXPECT_EQ(trigger.steps(), 1);
}

TEST(AfterStepTriggerTest,
     OptimizersThatTakeTurnsAreCountedAtForwardPassesAndCompleteAStepTogether) {
  Trigger trigger = EachStep();
  EXPECT_THAT(On(trigger, {Step(Kind::kAfterStep, 1)}), IsEmpty());
  EXPECT_FALSE(trigger.completed_step());
  EXPECT_THAT(On(trigger, {kForward}), ElementsAre(Action::kBegin, Action::kFinish));
  EXPECT_FALSE(trigger.completed_step());
  EXPECT_THAT(On(trigger, {Step(Kind::kAfterStep, 2)}),
              ElementsAre(Action::kBegin, Action::kFinish));
  EXPECT_TRUE(trigger.completed_step());
  EXPECT_THAT(On(trigger, {kForward}), IsEmpty());
  EXPECT_EQ(trigger.steps(), 2);
}

TEST(AfterStepTriggerTest, ASkippedStepOfOneThatHadSteppedCountsTheStepBeforeIt) {
  Trigger trigger = EachStep();
  EXPECT_THAT(On(trigger, {Step(Kind::kAfterStep, 1)}), IsEmpty());
  EXPECT_THAT(On(trigger, {Step(Kind::kStepSkipped, 1)}),
              ElementsAre(Action::kBegin, Action::kFinish));
  // Its skipped step is not counted yet.
  EXPECT_THAT(On(trigger, {kForward}), ElementsAre(Action::kBegin, Action::kFinish));
  EXPECT_EQ(trigger.steps(), 2);
}

TEST(TriggerTest, KnowsUnderEveryTriggerWhenAllGivenOptimizersHaveStepped) {
  for (TriggerKind kind : {TriggerKind::kWhenReady, TriggerKind::kInForward,
                           TriggerKind::kAfterStep, TriggerKind::kTimer, TriggerKind::kOnCall}) {
    SCOPED_TRACE(NameOf(kind));
    Trigger trigger = Make({.trigger = kind});
    On(trigger, {Step(Kind::kAfterStep, 1)});
    EXPECT_FALSE(trigger.completed_step());
    On(trigger, {Step(Kind::kAfterStep, 1)});  // again, and so not the other one
    EXPECT_FALSE(trigger.completed_step());
    TrainingEvent local = Step(Kind::kAfterStep, 2);
    local.is_synchronized = false;
    On(trigger, {local});
    EXPECT_FALSE(trigger.completed_step());
    On(trigger, {Step(Kind::kStepSkipped, 2)});
    EXPECT_TRUE(trigger.completed_step());
    On(trigger, {Step(Kind::kAfterStep, 2)});
    EXPECT_FALSE(trigger.completed_step());
  }
}

TEST(TriggerTest, WhereNoOptimizerWasGivenTheStepOfAnyCompletesOne) {
  Trigger trigger = Make({.trigger = TriggerKind::kWhenReady});
  TrainingEvent foreign = kAfter;
  foreign.is_given = false;
  On(trigger, {foreign});
  EXPECT_FALSE(trigger.completed_step());
  foreign.given_count = 0;
  On(trigger, {foreign});
  EXPECT_TRUE(trigger.completed_step());
  foreign.is_synchronized = false;
  On(trigger, {foreign});
  EXPECT_FALSE(trigger.completed_step());
}

TEST(AfterStepTriggerTest, CountsAStepOfSomeBeforeTheyStepAgainOrAForwardPass) {
  Trigger trigger = EachStep();
  EXPECT_THAT(On(trigger, {Step(Kind::kAfterStep, 1), Step(Kind::kBeforeStep, 1)}),
              ElementsAre(Action::kBegin, Action::kFinish));
  EXPECT_THAT(On(trigger, {Step(Kind::kAfterStep, 1), Recomputed(Kind::kForwardBegins)}),
              IsEmpty());
  EXPECT_THAT(On(trigger, {kForward, kForward}), ElementsAre(Action::kBegin, Action::kFinish));
  EXPECT_EQ(trigger.steps(), 2);
}

TEST(AfterStepTriggerTest, ASkippedStepCountsAndAForeignOrLocalOneDoesNot) {
  Trigger trigger = EachStep();
  TrainingEvent foreign = kAfter;
  foreign.is_given = false;
  EXPECT_THAT(On(trigger, {foreign, Local(Kind::kAfterStep)}), IsEmpty());
  EXPECT_THAT(On(trigger, {Event(Kind::kStepSkipped)}),
              ElementsAre(Action::kBegin, Action::kFinish));
  EXPECT_EQ(trigger.steps(), 1);
}

TEST(AfterStepTriggerTest, TensorsAreEqualFromARoundToTheNextStepOfAnyOptimizer) {
  Trigger trigger = Make({.trigger = TriggerKind::kAfterStep, .interval = 2});
  On(trigger, {kAfter});
  EXPECT_TRUE(trigger.tensors_are_equal());
  TrainingEvent foreign = kAfter;
  foreign.is_given = false;
  On(trigger, {foreign});
  EXPECT_FALSE(trigger.tensors_are_equal());
}

TEST(InForwardTriggerTest, BeginsBeforeTheForwardPassAndEndsWithTheBackwardPass) {
  Trigger trigger = InForward();
  EXPECT_TRUE(trigger.needs_backward());
  EXPECT_THAT(On(trigger, {kForward}), ElementsAre(Action::kFinishUnchanged, Action::kBegin));
  EXPECT_FALSE(trigger.needs_backward());
  EXPECT_THAT(On(trigger, {kBackward, BackwardEnds(false)}), ElementsAre(Action::kFinish));
  EXPECT_THAT(On(trigger, {kBefore, kAfter}), ElementsAre(Action::kFinish));
  EXPECT_TRUE(trigger.needs_backward());
}

TEST(InForwardTriggerTest, SeveralForwardPassesBeforeABackwardPassAreOneIteration) {
  Trigger trigger = InForward();
  On(trigger, {kForward, kForward, Recomputed(Kind::kForwardBegins)});
  EXPECT_EQ(trigger.steps(), 1);
  // No optimizer has stepped, as when a scaler skips a step: it is a new one all the same.
  On(trigger, {kBackward, BackwardEnds(false), kForward});
  EXPECT_EQ(trigger.steps(), 2);
}

TEST(InForwardTriggerTest, AnotherBackwardPassOfTheIterationBeginsNone) {
  Trigger trigger = InForward();
  On(trigger, {kForward, kBackward});
  EXPECT_THAT(On(trigger, {BackwardEnds(true)}), ElementsAre(Action::kNoteTensors));
  EXPECT_THAT(On(trigger, {kBackward}), IsEmpty());
  EXPECT_EQ(trigger.steps(), 1);
}

TEST(InForwardTriggerTest, TheFirstGradientBeginsWhatNoForwardPassDid) {
  Trigger trigger = InForward();
  EXPECT_THAT(On(trigger, {kBackward}), ElementsAre(Action::kFinishUnchanged, Action::kBegin));
  EXPECT_THAT(On(trigger, {BackwardEnds(false), kBackward}),
              ElementsAre(Action::kFinish, Action::kFinishUnchanged, Action::kBegin));
  EXPECT_EQ(trigger.steps(), 2);
}

TEST(InForwardTriggerTest, OnlyEveryIntervalthIterationHasARound) {
  Trigger trigger = InForward(2);
  std::vector<uint64_t> rounds_at;
  for (int i = 0; i < 5; ++i) {
    const std::vector<Action> due = On(trigger, {kForward});
    if (due.size() == 2) rounds_at.push_back(trigger.steps());
    On(trigger, {kBackward, BackwardEnds(false), kBefore, kAfter});
  }
  EXPECT_THAT(rounds_at, ElementsAre(1, 3, 5));
}

TEST(InForwardTriggerTest, LocalForwardPassesBeginNone) {
  Trigger trigger = InForward();
  EXPECT_THAT(On(trigger, {Local(Kind::kForwardBegins)}), IsEmpty());
  EXPECT_EQ(trigger.steps(), 0);
}

TEST(TimerTriggerTest, TheFirstForwardPassStartsItAndTheTensorsAreHeldToTheStep) {
  Trigger trigger = ByTimer();
  EXPECT_THAT(On(trigger, {kForward}), ElementsAre(Action::kClaim, Action::kResume));
  On(trigger, {kBackward, BackwardEnds(false)});
  EXPECT_THAT(On(trigger, {kBefore, kAfter}), ElementsAre(Action::kRelease));
  EXPECT_THAT(On(trigger, {kForward, kBackward, BackwardEnds(false)}), ElementsAre(Action::kClaim));
  EXPECT_THAT(On(trigger, {kBefore, kAfter}), ElementsAre(Action::kRelease));
}

TEST(TimerTriggerTest, WhereNoOptimizerStepsTheNextForwardPassGivesWay) {
  Trigger trigger = ByTimer();
  On(trigger, {kForward, kForward, kBackward, BackwardEnds(false)});
  EXPECT_THAT(On(trigger, {kForward}), ElementsAre(Action::kRelease, Action::kClaim));
}

TEST(TimerTriggerTest, InsideNoSyncNothingIsGivenFree) {
  Trigger trigger = ByTimer();
  On(trigger, {kForward, kForward, kBackward, BackwardEnds(false)});
  EXPECT_THAT(On(trigger, {Local(Kind::kAfterStep)}), IsEmpty());
  EXPECT_THAT(On(trigger, {Local(Kind::kForwardBegins)}), ElementsAre(Action::kClaim));
}

TEST(TimerTriggerTest, WithoutForwardPassesTensorsAreFreeForAMomentAfterEachStep) {
  Trigger trigger = ByTimer();
  EXPECT_THAT(On(trigger, {kBackward}), ElementsAre(Action::kClaim, Action::kResume));
  for (int step = 0; step < 3; ++step) {
    EXPECT_THAT(On(trigger, {kAfter}), ElementsAre(Action::kRelease, Action::kClaim));
    EXPECT_THAT(On(trigger, {kBackward}), ElementsAre(Action::kClaim));
  }
}

TEST(TimerTriggerTest, AnEvaluationBetweenStepsWithoutForwardPassesLeavesTensorsHeld) {
  Trigger trigger = ByTimer();
  On(trigger, {kBackward, BackwardEnds(false), kAfter, Event(Kind::kEvaluationBegins)});
  EXPECT_THAT(On(trigger, {kBackward, kAfter}), ElementsAre(Action::kRelease, Action::kClaim));
}

TEST(TimerTriggerTest, AnEvaluationHoldsTensorsOnlyOnceRoundsHaveBegun) {
  Trigger trigger = ByTimer();
  EXPECT_THAT(On(trigger, {Event(Kind::kEvaluationBegins)}), IsEmpty());
  On(trigger, {kForward});
  EXPECT_THAT(On(trigger, {Event(Kind::kEvaluationBegins)}),
              ElementsAre(Action::kRelease, Action::kClaim));
}

TEST(TimerTriggerTest, StoppingTakesPartInARoundThatOthersMayHaveBegun) {
  Trigger trigger = ByTimer();
  EXPECT_THAT(trigger.Stop(), ElementsAre(Action::kResume));
  EXPECT_FALSE(trigger.is_wanted());
  EXPECT_THAT(On(trigger, {kForward}), ElementsAre(Action::kClaim));
  EXPECT_THAT(trigger.Stop(), IsEmpty());
  EXPECT_THAT(trigger.Resume(), ElementsAre(Action::kResume));
}

TEST(TimerTriggerTest, WhatStaysStoppedBeginsWithTheNextForwardPassAfterResume) {
  Trigger trigger = ByTimer();
  trigger.StayStopped();
  EXPECT_THAT(On(trigger, {kForward}), ElementsAre(Action::kClaim));
  EXPECT_THAT(trigger.Resume(), IsEmpty());
  EXPECT_THAT(On(trigger, {kForward}), ElementsAre(Action::kClaim, Action::kResume));
}

TEST(TriggerTest, ACopyIsWhatItWas) {
  Trigger trigger = EachStep();
  const Trigger before = trigger;
  On(trigger, {kAfter});
  trigger = before;
  EXPECT_EQ(trigger.steps(), 0);
}

}  // namespace
}  // namespace pelton
