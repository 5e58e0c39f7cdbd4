// Tunes the bucket size of one model while it is trained.
#ifndef PELTON_BACKEND_PLAN_TUNING_H_
#define PELTON_BACKEND_PLAN_TUNING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/actor/wait_hook.h"
#include "core/base/ids.h"
#include "core/round/model_rounds.h"
#include "core/tuning/plan_tuner.h"
#include "core/tuning/round_estimate.h"

namespace pelton {

// Threads: a value. Owns: its texts.
struct PlanTuningOptions {
  std::string model_name;  // for the log
  // Rank 0 of the group measures and decides, and the others follow.
  bool decides = false;
  // Where the deciding rank adds a line for each contestant, with Bagua's columns and an empty
  // `setup`; "": nowhere.
  std::string csv_path;
  PlanTunerOptions tuner;
};

// Measures rounds, fits what a bucket costs, tries the bucket sizes that should be the fastest, and
// takes the one that proves faster than that in force by more than the noise (PlanTuner). All ranks
// change at the same round, because a turn is a number of rounds and what follows it is rank 0's
// word.
//
// Each round: SlotReady for its tensors, RoundEnded, Agreed. Where Agreed gives a size, the caller
// moves its rounds there.
// Threads: SlotReady by any, each slot by one; all others the trainer's. Owns: what it measured;
// borrows the rounds, which outlive it.
class PlanTuning {
 public:
  // Between rounds, on all ranks at the same one. `order`: of the plan's tensors, the same on all.
  PlanTuning(ModelRounds& rounds, std::vector<SlotId> order, PlanTuningOptions options);
  ~PlanTuning() { rounds_.times().End(); }
  PlanTuning(const PlanTuning&) = delete;
  PlanTuning& operator=(const PlanTuning&) = delete;

  void SlotReady(SlotId slot) {
    if (is_measuring_) ready_at_[static_cast<size_t>(slot.value())] = WaitClock().Now();
  }
  // The round is complete. Begins to agree on what comes where a turn ends. Errors: those of
  // ModelRounds::BeginAgreement.
  absl::Status RoundEnded();
  // The bucket size to move to, if it is another one now. Collective where a turn has ended.
  // Blocks: until `deadline`. Errors: those of ModelRounds::Agreed.
  absl::StatusOr<std::optional<uint64_t>> Agreed(absl::Time deadline);

  absl::Span<const SlotId> order() const { return order_; }
  bool is_over() const { return left_ == 0; }

 private:
  void Measure();
  std::vector<double> Predict();
  PlanTuner::Turn DecideTurn();
  void TellPredictions(absl::Span<const double> predicted_s, const BucketCost& cost) const;
  void TellVerdicts();
  void WriteRow(size_t plan, double step_s);
  uint64_t SizeOfPlan(size_t plan) const {
    return candidates_.plans[plan].options().bucket_size_bytes;
  }

  ModelRounds& rounds_;
  const std::vector<SlotId> order_;
  const PlanTuningOptions options_;
  std::string csv_path_;  // "" once a row could not be written
  const CandidatePlans candidates_;
  PlanTuner tuner_;
  int left_ = 0;  // rounds of the turn
  bool is_measuring_ = false;
  bool is_agreeing_ = false;
  uint64_t rounds_seen_ = 0;
  absl::Time last_end_;
  std::vector<double> steps_s_;               // of the turn
  std::vector<absl::Time> ready_at_;          // by slot, in the open round
  std::vector<std::vector<double>> ready_s_;  // by slot, of the rounds measured
  std::vector<BucketSample> samples_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_PLAN_TUNING_H_
