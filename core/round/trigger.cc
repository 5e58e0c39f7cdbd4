#include "core/round/trigger.h"

#include <algorithm>
#include <utility>

namespace pelton {

Trigger::Trigger(const Schedule& schedule, bool makes_equal, uint64_t steps, bool is_open)
    : schedule_(schedule), makes_equal_(makes_equal), steps_(steps), is_open_(is_open) {
  // A schedule's delay is below its interval: the open round is the last that was due.
  if (is_open) begun_at_ = steps - (steps - schedule.first_step) % schedule.interval;
}

RoundActions Trigger::On(const TrainingEvent& event) {
  // kAfterStep looks at who had stepped before it notes the step.
  completed_step_ = schedule_.trigger != TriggerKind::kAfterStep && Complete(event);
  switch (schedule_.trigger) {
    case TriggerKind::kWhenReady:
      return {};
    case TriggerKind::kInForward:
      return OnInForward(event);
    case TriggerKind::kAfterStep:
      return OnAfterStep(event);
    case TriggerKind::kTimer:
      return OnTimer(event);
    case TriggerKind::kOnCall:
      if (event.kind != EventKind::kCall) return {};
      return {RoundAction::kBegin, RoundAction::kFinish};
  }
  return {};
}

bool Trigger::IsDue() const {
  return steps_ >= schedule_.first_step &&
         (steps_ - schedule_.first_step) % schedule_.interval == 0;
}

RoundActions Trigger::OnInForward(const TrainingEvent& event) {
  RoundActions actions;
  switch (event.kind) {
    case EventKind::kForwardBegins:
      if (!event.is_synchronized || event.is_recomputed) break;
      if (is_in_iteration_ && !has_backward_) break;
      BeginIteration(actions);
      is_announced_ = true;
      break;
    case EventKind::kBackwardBegins:
      if (!is_in_iteration_ || (has_backward_ && !is_announced_)) BeginIteration(actions);
      break;
    case EventKind::kBackwardEnds:
      // The gradients were taken before, the optimizer applies them after.
      has_backward_ = true;
      actions.push_back(event.may_go_on ? RoundAction::kNoteTensors : RoundAction::kFinish);
      break;
    case EventKind::kBeforeStep:
      actions.push_back(RoundAction::kFinish);
      break;
    case EventKind::kAfterStep:
      is_in_iteration_ = has_backward_ = is_announced_ = false;
      break;
    default:
      break;
  }
  return actions;
}

void Trigger::BeginIteration(RoundActions& actions) {
  // What neither the end of a backward pass nor an optimizer has merged.
  actions.push_back(RoundAction::kFinishUnchanged);
  is_in_iteration_ = true;
  has_backward_ = is_announced_ = false;
  ++steps_;
  if (IsDue()) actions.push_back(RoundAction::kBegin);
}

bool Trigger::Complete(const TrainingEvent& event) {
  const bool is_skipped = event.kind == EventKind::kStepSkipped;
  if (event.kind != EventKind::kAfterStep && !is_skipped) return false;
  if (!event.is_synchronized) return false;
  if (!event.is_given && !is_skipped) return event.given_count == 0;
  const auto same = [&](const Stepped& one) { return one.optimizer == event.optimizer; };
  const auto found = std::find_if(have_stepped_.begin(), have_stepped_.end(), same);
  if (found == have_stepped_.end()) {
    have_stepped_.push_back({event.optimizer, false});
  } else {
    found->is_counted = false;
  }
  if (have_stepped_.size() < event.given_count) return false;
  have_stepped_.clear();
  return true;
}

bool Trigger::HasStepped(uint64_t optimizer) const {
  return std::any_of(have_stepped_.begin(), have_stepped_.end(), [&](const Stepped& one) {
    return one.optimizer == optimizer && !one.is_counted;
  });
}

bool Trigger::HasUncounted() const {
  return std::any_of(have_stepped_.begin(), have_stepped_.end(),
                     [](const Stepped& one) { return !one.is_counted; });
}

RoundActions Trigger::OnAfterStep(const TrainingEvent& event) {
  RoundActions actions;
  const bool is_skipped = event.kind == EventKind::kStepSkipped;
  if (event.kind == EventKind::kForwardBegins) {
    if (event.is_synchronized && !event.is_recomputed && HasUncounted()) CountStep(actions);
  }
  // Each rank's scaler looks at its own gradients, and all ranks have to count alike.
  if (event.kind == EventKind::kBeforeStep || is_skipped) {
    if (event.is_synchronized && HasStepped(event.optimizer)) CountStep(actions);
  }
  if (event.kind == EventKind::kAfterStep || is_skipped) {
    tensors_are_equal_ = false;
    completed_step_ = Complete(event);
    if (completed_step_ && (event.is_given || is_skipped)) CountStep(actions);
  }
  return actions;
}

void Trigger::CountStep(RoundActions& actions) {
  for (Stepped& one : have_stepped_) one.is_counted = true;
  ++steps_;
  if (is_open_ && steps_ - begun_at_ >= schedule_.delay) {
    actions.push_back(RoundAction::kFinish);
    is_open_ = false;
  }
  if (!IsDue()) return;
  begun_at_ = steps_;
  actions.push_back(RoundAction::kBegin);
  is_open_ = schedule_.delay > 0;
  if (is_open_) return;
  actions.push_back(RoundAction::kFinish);
  tensors_are_equal_ = makes_equal_;
}

RoundActions Trigger::OnTimer(const TrainingEvent& event) {
  RoundActions actions;
  switch (event.kind) {
    case EventKind::kForwardBegins:
      if (event.is_recomputed) break;
      if (!Start(actions)) {
        if (event.is_synchronized && has_backward_) Free(actions);
        actions.push_back(RoundAction::kClaim);
      }
      saw_forward_ = forwards_are_seen_ = true;
      break;
    case EventKind::kEvaluationBegins:
      if (!has_begun_ || event.is_recomputed) break;
      // A pass without a backward pass after it gives way to the next.
      if (event.is_synchronized || !has_backward_) Free(actions);
      actions.push_back(RoundAction::kClaim);
      saw_forward_ = true;
      break;
    case EventKind::kBackwardBegins:
      // The next step's forward pass will not be seen either, so that its weights are held from
      // this step on: what it saves for its backward pass must not change in between.
      if (!saw_forward_) forwards_are_seen_ = false;
      if (!Start(actions) && !saw_forward_) actions.push_back(RoundAction::kClaim);
      break;
    case EventKind::kBackwardEnds:
      has_backward_ |= event.is_synchronized;
      break;
    case EventKind::kAfterStep:
      if (!completed_step_) break;
      Free(actions);
      if (!forwards_are_seen_) actions.push_back(RoundAction::kClaim);
      break;
    default:
      break;
  }
  return actions;
}

bool Trigger::Start(RoundActions& actions) {
  if (has_begun_ || !is_wanted_) return false;
  has_begun_ = true;
  actions.push_back(RoundAction::kClaim);
  actions.push_back(RoundAction::kResume);
  return true;
}

void Trigger::Free(RoundActions& actions) {
  has_backward_ = saw_forward_ = false;
  actions.push_back(RoundAction::kRelease);
}

RoundActions Trigger::Stop() {
  RoundActions actions;
  // The others may have begun, and end only together with this rank.
  if (is_wanted_ && !has_begun_) actions.push_back(RoundAction::kResume);
  has_begun_ = true;
  is_wanted_ = false;
  return actions;
}

RoundActions Trigger::Resume() {
  is_wanted_ = true;
  if (!has_begun_) return {};
  return {RoundAction::kResume};
}

}  // namespace pelton
