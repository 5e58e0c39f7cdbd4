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
  // A plan's turn; the first round of it, which follows a change of plans, does not count.
  int turn = 4;
  int challengers = 3;       // tried against the plan in force
  int cycles = 2;            // in which each of them has a turn
  int neighbor_cycles = 2;   // the same for the neighbours of the plan that was taken
  int most = 58;             // in all, before tuning ends
  double least_gain = 0.01;  // share of the step below which a plan is not worth taking
};

// How a plan did against the one in force. Threads: a value. Owns: nothing. Units: seconds.
struct PlanVerdict {
  size_t current = 0;
  size_t challenger = 0;
  double current_s = 0;  // a step's median
  double challenger_s = 0;
  double noise_s = 0;  // a difference within which both count as equal
  bool is_taken = false;
};

// A plan is a number among candidates in the order of their bucket sizes. The first turn is the
// recording. Then those with the best predictions have turns with the plan in force, in cycles that
// begin with another of them each time; one is taken whose steps were faster by more than the noise
// seen, and in every cycle. Last come the neighbours of the plan that is in force then, which the
// predictions may have missed.
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
  bool is_recording() const { return is_recording_; }

  // The turn is over. `steps_s`: what each of its rounds took, from the end of the one before.
  // `predicted_s`: by candidate, after the recording; else of no meaning. Returns the next turn.
  Turn Next(absl::Span<const double> steps_s, absl::Span<const double> predicted_s);

  // Those of the last contest, if it ended with the last Next; else none.
  const std::vector<PlanVerdict>& verdicts() const { return verdicts_; }

 private:
  struct Contestant {
    size_t plan = 0;
    std::vector<double> steps_s;    // that count
    std::vector<double> medians_s;  // by cycle
  };

  std::vector<size_t> Challengers(absl::Span<const double> predicted_s) const;
  std::vector<size_t> Neighbors() const;
  void Begin(const std::vector<size_t>& challengers, int cycles);
  void Decide();
  double ErrorOfMedians() const;
  PlanVerdict Judge(const Contestant& current, const Contestant& challenger, double error) const;
  Turn TurnOf(size_t place) const;
  Turn End();

  const size_t candidates_;
  const PlanTunerOptions options_;
  size_t current_;
  bool is_recording_ = true;
  int rounds_ = 0;  // that have been
  std::vector<bool> was_tried_;
  // The contest: the plan in force, then its challengers.
  std::vector<Contestant> contestants_;
  int cycles_ = 0;
  size_t turns_ = 0;  // of it that have been
  std::vector<PlanVerdict> verdicts_;
  Turn turn_;
};

}  // namespace pelton

#endif  // PELTON_CORE_TUNING_PLAN_TUNER_H_
