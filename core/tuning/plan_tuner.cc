#include "core/tuning/plan_tuner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/check.h"

namespace pelton {
namespace {

// Of normal values: the standard deviation by the median absolute one, which few values make too
// small, and the standard error of a median.
constexpr double kDeviationsOfMad = 1.4826;
constexpr double kFewer = 0.8;
constexpr double kErrorOfMedian = 1.2533;
// So many standard errors apart, medians of equal plans are not.
constexpr double kErrorsApart = 5;
// Plans whose numbers are closer than that are too alike for a contest of few.
constexpr size_t kApart = 2;

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

PlanTuner::PlanTuner(size_t candidates, size_t current, PlanTunerOptions options)
    : candidates_(candidates),
      options_(options),
      current_(current),
      was_tried_(candidates, false),
      turn_{current, options.recorded} {
  PELTON_CHECK(current < candidates) << "no such plan";
  PELTON_CHECK(options.turn > 1) << "the first round of a turn does not count";
  if (candidates == 1) End();  // there is no other
}

PlanTuner::Turn PlanTuner::Next(absl::Span<const double> steps_s,
                                absl::Span<const double> predicted_s) {
  verdicts_.clear();
  rounds_ += turn_.rounds;
  if (is_recording_) {
    is_recording_ = false;
    Begin(Challengers(predicted_s), options_.cycles);
  } else {
    Contestant& contestant =
        contestants_[(turns_ + turns_ / contestants_.size()) % contestants_.size()];
    const std::vector<double> counted(steps_s.begin() + 1, steps_s.end());
    contestant.steps_s.insert(contestant.steps_s.end(), counted.begin(), counted.end());
    contestant.medians_s.push_back(MedianOf(counted));
    ++turns_;
  }
  if (turns_ == contestants_.size() * static_cast<size_t>(cycles_)) {
    Decide();
    Begin(Neighbors(), options_.neighbor_cycles);
  }
  const int left = options_.most - rounds_;
  const auto turns_left =
      static_cast<int>(contestants_.size()) * cycles_ - static_cast<int>(turns_);
  if (contestants_.size() < 2 || left < turns_left * options_.turn) return End();
  return turn_ = TurnOf(turns_);
}

// Each cycle begins with another contestant, so that a machine that grows slower is to the
// disadvantage of none.
PlanTuner::Turn PlanTuner::TurnOf(size_t place) const {
  const size_t count = contestants_.size();
  return {contestants_[(place + place / count) % count].plan, options_.turn};
}

PlanTuner::Turn PlanTuner::End() {
  contestants_.clear();
  is_recording_ = false;
  return turn_ = {current_, 0};
}

std::vector<size_t> PlanTuner::Challengers(absl::Span<const double> predicted_s) const {
  PELTON_CHECK(predicted_s.size() == candidates_) << "a prediction for each candidate";
  std::vector<size_t> by_time(candidates_);
  std::iota(by_time.begin(), by_time.end(), size_t{0});
  std::stable_sort(by_time.begin(), by_time.end(),
                   [&](size_t a, size_t b) { return predicted_s[a] < predicted_s[b]; });
  std::vector<size_t> chosen;
  // First those that differ much, then, where these are few, any.
  for (size_t apart : {kApart, size_t{1}}) {
    for (size_t plan : by_time) {
      if (chosen.size() == static_cast<size_t>(options_.challengers)) return chosen;
      const auto is_close = [&](size_t other) {
        return (plan > other ? plan - other : other - plan) < apart;
      };
      if (plan == current_ || std::any_of(chosen.begin(), chosen.end(), is_close)) continue;
      chosen.push_back(plan);
    }
  }
  return chosen;
}

std::vector<size_t> PlanTuner::Neighbors() const {
  std::vector<size_t> neighbors;
  if (current_ > 0 && !was_tried_[current_ - 1]) neighbors.push_back(current_ - 1);
  if (current_ + 1 < candidates_ && !was_tried_[current_ + 1]) neighbors.push_back(current_ + 1);
  return neighbors;
}

void PlanTuner::Begin(const std::vector<size_t>& challengers, int cycles) {
  contestants_.clear();
  contestants_.push_back({current_, {}, {}});
  for (size_t plan : challengers) {
    was_tried_[plan] = true;
    contestants_.push_back({plan, {}, {}});
  }
  was_tried_[current_] = true;
  cycles_ = cycles;
  turns_ = 0;
}

void PlanTuner::Decide() {
  PlanVerdict* best = nullptr;
  const double error = ErrorOfMedians();
  verdicts_.reserve(contestants_.size());
  for (size_t i = 1; i < contestants_.size(); ++i) {
    verdicts_.push_back(Judge(contestants_.front(), contestants_[i], error));
    PlanVerdict& verdict = verdicts_.back();
    if (!std::exchange(verdict.is_taken, false)) continue;
    if (best == nullptr || verdict.challenger_s < best->challenger_s) best = &verdict;
  }
  if (best == nullptr) return;
  best->is_taken = true;
  current_ = best->challenger;
}

// Of all together: few steps of one alone say little about the noise. As a share of the median.
double PlanTuner::ErrorOfMedians() const {
  std::vector<double> distances;
  for (const Contestant& contestant : contestants_) {
    const double median = MedianOf(contestant.steps_s);
    for (double step_s : contestant.steps_s) distances.push_back(std::abs(step_s / median - 1));
  }
  const auto steps = static_cast<double>(contestants_.front().steps_s.size());
  const double deviation =
      kDeviationsOfMad * steps / (steps - kFewer) * MedianOf(std::move(distances));
  return kErrorOfMedian * deviation / std::sqrt(steps);
}

PlanVerdict PlanTuner::Judge(const Contestant& current, const Contestant& challenger,
                             double error) const {
  PlanVerdict verdict;
  verdict.current = current.plan;
  verdict.challenger = challenger.plan;
  verdict.current_s = MedianOf(current.steps_s);
  verdict.challenger_s = MedianOf(challenger.steps_s);
  verdict.noise_s = kErrorsApart * error * std::hypot(verdict.current_s, verdict.challenger_s);
  const double gain_s = verdict.current_s - verdict.challenger_s;
  verdict.is_taken = gain_s > std::max(verdict.noise_s, options_.least_gain * verdict.current_s);
  for (size_t i = 0; i < current.medians_s.size(); ++i) {
    verdict.is_taken &= challenger.medians_s[i] < current.medians_s[i];
  }
  return verdict;
}

}  // namespace pelton
