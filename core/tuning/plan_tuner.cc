#include "core/tuning/plan_tuner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/check.h"

namespace pelton {
namespace {

// So many standard errors above its mean, which chance alone reaches in one case of a hundred.
constexpr double kErrorsApart = 2.33;
// A plan whose best step is so many times that of the plan in force is not worth a comparison.
constexpr double kHopeless = 1.5;
// Plans whose numbers are closer than that are too alike for a contest of few.
constexpr size_t kApart = 2;

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// By how much values of `b` are smaller than those of `a`: the middle of all differences, and the
// one that the true difference is below in one case of a hundred only.
struct Shift {
  double middle = 0;
  double least = 0;
};
Shift ShiftOf(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences;
  differences.reserve(a.size() * b.size());
  for (double one : a) {
    for (double other : b) differences.push_back(one - other);
  }
  std::sort(differences.begin(), differences.end());
  const auto pairs = static_cast<double>(differences.size());
  const double error = std::sqrt(pairs * static_cast<double>(a.size() + b.size() + 1) / 12);
  const double below = std::max(0.0, pairs / 2 - kErrorsApart * error);
  return {MedianOf(differences), differences[static_cast<size_t>(below)]};
}

}  // namespace

PlanTuner::PlanTuner(size_t candidates, size_t current, PlanTunerOptions options)
    : candidates_(candidates),
      options_(options),
      current_(current),
      turn_{current, options.recorded} {
  PELTON_CHECK(current < candidates) << "no such plan";
  PELTON_CHECK(options.turn > options.skipped) << "a turn needs a round that counts";
  if (candidates == 1) End();  // there is no other
}

PlanTuner::Turn PlanTuner::Next(absl::Span<const double> steps_s,
                                absl::Span<const double> predicted_s) {
  verdicts_.clear();
  rounds_ += turn_.rounds;
  if (phase_ == Phase::kRecords) {
    phase_ = Phase::kTriesEach;
    waiting_ = Challengers(predicted_s);
    if (candidates_ == 2) return BeginComparison(1 - current_);
    waiting_.insert(waiting_.begin(), current_);
    return NextTry();
  }
  PELTON_CHECK(phase_ != Phase::kIsOver) << "tuning has ended";
  std::vector<double> counted(steps_s.begin() + options_.skipped, steps_s.end());
  if (phase_ == Phase::kTriesEach) {
    tries_.push_back({turn_.plan, std::move(counted)});
    return NextTry();
  }
  Side& side = turn_.plan == current_ ? current_side_ : challenger_side_;
  side.medians_s.push_back(MedianOf(counted));
  side.steps_s.insert(side.steps_s.end(), counted.begin(), counted.end());
  if (turns_left_ > 0) return NextOfTwo();
  Decide();
  return End();
}

PlanTuner::Turn PlanTuner::End() {
  phase_ = Phase::kIsOver;
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

std::vector<size_t> PlanTuner::NeighborsOf(size_t plan) const {
  std::vector<size_t> neighbors;
  const auto add = [&](size_t other) {
    const auto is_it = [other](const Try& each) { return each.plan == other; };
    if (std::none_of(tries_.begin(), tries_.end(), is_it)) neighbors.push_back(other);
  };
  if (plan > 0) add(plan - 1);
  if (plan + 1 < candidates_) add(plan + 1);
  return neighbors;
}

PlanTuner::Turn PlanTuner::NextTry() {
  if (waiting_.empty() && !std::exchange(has_named_neighbors_, true)) {
    waiting_ = NeighborsOf(FastestTry(0).plan);
  }
  // Without the comparison of the last two nothing is decided.
  if (waiting_.empty() || left() < options_.turn * (1 + 2 * options_.least_pairs)) {
    return EndTries();
  }
  const size_t plan = waiting_.front();
  waiting_.erase(waiting_.begin());
  return turn_ = {plan, options_.turn};
}

// By its best step, as a machine that others use makes most steps of one turn longer, or none.
const PlanTuner::Try& PlanTuner::FastestTry(size_t from) const {
  return *std::min_element(tries_.begin() + static_cast<ptrdiff_t>(from), tries_.end(),
                           [](const Try& a, const Try& b) { return LeastOf(a) < LeastOf(b); });
}

double PlanTuner::LeastOf(const Try& each) {
  return *std::min_element(each.steps_s.begin(), each.steps_s.end());
}

// All challengers were tried after the plan in force.
PlanTuner::Turn PlanTuner::EndTries() {
  if (tries_.size() < 2) return End();
  const Try& current = tries_.front();
  for (size_t i = 1; i < tries_.size(); ++i) {
    PlanVerdict& verdict = verdicts_.emplace_back();
    verdict.current = current_;
    verdict.challenger = tries_[i].plan;
    verdict.current_s = MedianOf(current.steps_s);
    verdict.challenger_s = MedianOf(tries_[i].steps_s);
  }
  const Try& fastest = FastestTry(1);
  if (LeastOf(fastest) > kHopeless * LeastOf(current)) return End();
  return BeginComparison(fastest.plan);
}

PlanTuner::Turn PlanTuner::BeginComparison(size_t challenger) {
  const int pairs = std::min(options_.pairs, left() / (2 * options_.turn));
  if (pairs < options_.least_pairs) return End();
  phase_ = Phase::kComparesTwo;
  challenger_ = challenger;
  turns_left_ = 2 * pairs;
  return NextOfTwo();
}

// As C K, K C, C K: of the turns that are left every first and fourth is the one's.
PlanTuner::Turn PlanTuner::NextOfTwo() {
  --turns_left_;
  const bool is_current = turns_left_ % 4 == 0 || turns_left_ % 4 == 3;
  return turn_ = {is_current ? current_ : challenger_, options_.turn};
}

void PlanTuner::Decide() {
  PlanVerdict verdict;
  verdict.current = current_;
  verdict.challenger = challenger_;
  verdict.current_s = MedianOf(current_side_.steps_s);
  verdict.challenger_s = MedianOf(challenger_side_.steps_s);
  const Shift shift = ShiftOf(current_side_.steps_s, challenger_side_.steps_s);
  verdict.gain_s = shift.middle;
  verdict.noise_s = shift.middle - shift.least;
  verdict.is_final = true;
  size_t won = 0;
  for (size_t i = 0; i < current_side_.medians_s.size(); ++i) {
    won += challenger_side_.medians_s[i] < current_side_.medians_s[i] ? 1 : 0;
  }
  verdict.is_taken =
      shift.middle > std::max(verdict.noise_s, options_.least_gain * verdict.current_s) &&
      won + 1 >= current_side_.medians_s.size();
  if (verdict.is_taken) current_ = challenger_;
  verdicts_.push_back(verdict);
}

}  // namespace pelton
