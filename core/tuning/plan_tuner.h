// Which plan the rounds of a model run on, while it is being found out which is the fastest.
#ifndef PELTON_CORE_TUNING_PLAN_TUNER_H_
#define PELTON_CORE_TUNING_PLAN_TUNER_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace pelton {

// Threads: a value. Owns: nothing. Units: rounds, unless said.
struct PlanTunerOptions {
  int recorded = 2;  // on the plan in force, before predictions are asked for
  int turn = 4;      // of a plan
  // The first rounds of a turn, which follow a change of plans and do not count.
  int skipped = 1;
  int challengers = 3;       // that have one turn each, beside the plan in force
  int pairs = 6;             // of turns of the last two, at most
  int least_pairs = 3;       // without which nothing is decided
  int most = 58;             // in all, before tuning ends
  double least_gain = 0.01;  // share of the step below which a plan is not worth taking
};

// How a plan did against the one in force. Threads: a value. Owns: nothing. Units: seconds.
struct PlanVerdict {
  size_t current = 0;
  size_t challenger = 0;
  double current_s = 0;  // a step's median
  double challenger_s = 0;
  // Of the last two alone: by how much a step of the challenger's is shorter, and by how much that
  // may be luck.
  double gain_s = 0;
  double noise_s = 0;
  bool is_final = false;
  bool is_taken = false;
};

// A plan is a number among candidates in the order of their bucket sizes. The first turn is the
// recording. Then those with the best predictions and the plan in force have one turn each, and
// after them the neighbours of the fastest, which the predictions may have missed. The fastest of
// them all and the plan in force have the rounds that remain, in pairs of turns of which every
// other one begins with the challenger, so that a machine that grows slower is to the disadvantage
// of neither. The challenger is taken if its steps were faster by more than the noise, and in all
// pairs but one.
//
// The noise is what a rank test says, so that steps that take very long count as any that are
// longer: of equal plans whose steps differ by chance alone, whatever its distribution, one is
// taken in less than one of a hundred tunings.
// Source: Hodges and Lehmann's estimator with the interval of Wilcoxon's test.
// Threads: one. Owns: copies.
class PlanTuner {
 public:
  // `candidates` of them are there; `current` is in force.
  PlanTuner(size_t candidates, size_t current, PlanTunerOptions options);

  struct Turn {
    size_t plan = 0;
    int rounds = 0;  // 0: tuning has ended, and `plan` stays
  };

  // What is under way.
  Turn turn() const { return turn_; }

  // The turn is over. `steps_s`: what each of its rounds took, from the end of the one before.
  // `predicted_s`: by candidate, after the recording; else of no meaning. Returns the next turn.
  Turn Next(absl::Span<const double> steps_s, absl::Span<const double> predicted_s);

  // What has been decided with the last Next, if anything has.
  const std::vector<PlanVerdict>& verdicts() const { return verdicts_; }

 private:
  enum class Phase { kRecords, kTriesEach, kComparesTwo, kIsOver };
  struct Try {
    size_t plan = 0;
    std::vector<double> steps_s;  // that count
  };
  // One of the last two.
  struct Side {
    std::vector<double> steps_s;    // that count
    std::vector<double> medians_s;  // by turn
  };

  int left() const { return options_.most - rounds_; }
  std::vector<size_t> Challengers(absl::Span<const double> predicted_s) const;
  std::vector<size_t> NeighborsOf(size_t plan) const;
  Turn NextTry();
  // Of those from number `from` on.
  const Try& FastestTry(size_t from) const;
  static double LeastOf(const Try& each);
  Turn EndTries();
  Turn BeginComparison(size_t challenger);
  Turn NextOfTwo();
  void Decide();
  Turn End();

  const size_t candidates_;
  const PlanTunerOptions options_;
  size_t current_;
  Phase phase_ = Phase::kRecords;
  int rounds_ = 0;               // that have been
  std::vector<size_t> waiting_;  // for their turn
  bool has_named_neighbors_ = false;
  std::vector<Try> tries_;
  size_t challenger_ = 0;
  int turns_left_ = 0;  // of the last two
  Side current_side_;
  Side challenger_side_;
  std::vector<PlanVerdict> verdicts_;
  Turn turn_;
};

}  // namespace pelton

#endif  // PELTON_CORE_TUNING_PLAN_TUNER_H_
