#include "backend/plan_tuning.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/actor/wait_hook.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr uint64_t kSmallestBytes = 16 << 10;
constexpr uint64_t kLargestBytes = 64 << 20;
constexpr double kMillis = 1e3;
constexpr double kMicros = 1e6;

// What the ranks agree on: the rounds of the next turn and its bucket size.
std::vector<int32_t> WordsOf(int rounds, uint64_t bucket_size_bytes) {
  return {rounds, static_cast<int32_t>(bucket_size_bytes & 0x7fffffff),
          static_cast<int32_t>(bucket_size_bytes >> 31)};
}

uint64_t BytesOf(absl::Span<const int32_t> words) {
  return static_cast<uint64_t>(words[1]) | static_cast<uint64_t>(words[2]) << 31;
}

std::string InWords(uint64_t size_bytes) {
  if (size_bytes >= 1 << 20)
    return absl::StrFormat("%.4g MiB", static_cast<double>(size_bytes) / (1 << 20));
  return absl::StrFormat("%.4g KiB", static_cast<double>(size_bytes) / (1 << 10));
}

}  // namespace

PlanTuning::PlanTuning(ModelRounds& rounds, std::vector<SlotId> order, PlanTuningOptions options)
    : rounds_(rounds),
      order_(std::move(order)),
      options_(std::move(options)),
      csv_path_(options_.csv_path),
      candidates_(CandidatesFor(rounds.plan(), order_, kSmallestBytes, kLargestBytes)),
      tuner_(candidates_.plans.size(), candidates_.current, options_.tuner),
      left_(tuner_.turn().rounds),
      is_measuring_(options_.decides && left_ > 0),
      last_end_(WaitClock().Now()) {
  const size_t slots = rounds.plan().slots().size();
  ready_at_.resize(slots);
  ready_s_.resize(slots);
  if (is_measuring_) rounds_.times().Begin(slots);
}

absl::Status PlanTuning::RoundEnded() {
  if (is_over()) return absl::OkStatus();
  ++rounds_seen_;
  const absl::Time now = WaitClock().Now();
  steps_s_.push_back(absl::ToDoubleSeconds(now - std::exchange(last_end_, now)));
  if (is_measuring_) Measure();
  if (--left_ > 0) return absl::OkStatus();
  left_ = 1;  // until it is known what follows
  is_agreeing_ = true;
  if (!options_.decides) return rounds_.BeginAgreement(WordsOf(0, 0));
  const PlanTuner::Turn turn = DecideTurn();
  return rounds_.BeginAgreement(WordsOf(turn.rounds, SizeOfPlan(turn.plan)));
}

absl::StatusOr<std::optional<uint64_t>> PlanTuning::Agreed(absl::Time deadline) {
  if (!std::exchange(is_agreeing_, false)) return std::nullopt;
  ASSIGN_OR_RETURN(const std::vector<int32_t> words, rounds_.Agreed(deadline));
  left_ = words[0];
  steps_s_.clear();
  const uint64_t size_bytes = BytesOf(words);
  if (size_bytes == rounds_.plan().options().bucket_size_bytes) return std::nullopt;
  return size_bytes;
}

void PlanTuning::Measure() {
  const absl::Time first = *std::min_element(ready_at_.begin(), ready_at_.end());
  for (size_t i = 0; i < ready_at_.size(); ++i) {
    ready_s_[i].push_back(absl::ToDoubleSeconds(ready_at_[i] - first));
  }
  const std::vector<BucketSample> samples = SamplesOf(rounds_.plan(), rounds_.times());
  samples_.insert(samples_.end(), samples.begin(), samples.end());
}

PlanTuner::Turn PlanTuning::DecideTurn() {
  std::vector<double> predicted_s;
  if (std::exchange(is_measuring_, false)) {
    rounds_.times().End();
    predicted_s = Predict();
  }
  const PlanTuner::Turn turn = tuner_.Next(steps_s_, predicted_s);
  TellVerdicts();
  if (turn.rounds == 0) {
    Log(LogLevel::kInfo,
        absl::StrCat("model '", options_.model_name, "': autotune has ended after ", rounds_seen_,
                     " rounds with buckets of ", InWords(SizeOfPlan(turn.plan))));
  }
  return turn;
}

std::vector<double> PlanTuning::Predict() {
  std::vector<double> ready_s;
  for (std::vector<double>& of_slot : ready_s_) ready_s.push_back(MedianOf(of_slot));
  const BucketCost cost = FitBucketCost(samples_);
  std::vector<double> predicted_s;
  for (const Plan& plan : candidates_.plans) predicted_s.push_back(EndOfRound(plan, ready_s, cost));
  TellPredictions(predicted_s, cost);
  return predicted_s;
}

void PlanTuning::TellPredictions(absl::Span<const double> predicted_s,
                                 const BucketCost& cost) const {
  std::string line = absl::StrFormat(
      "model '%s': autotune has measured %d rounds: a bucket takes %.1f us and %.3f ns a byte%s; "
      "rounds should take",
      options_.model_name, options_.tuner.recorded, cost.latency_s * kMicros,
      cost.seconds_per_byte * kMicros * kMillis,
      cost.is_split_assumed ? " (assumed, because the buckets' sizes hardly differ)" : "");
  for (size_t i = 0; i < predicted_s.size(); ++i) {
    absl::StrAppend(&line, i == 0 ? " " : ", ",
                    absl::StrFormat("%.2f ms with buckets of %s", predicted_s[i] * kMillis,
                                    InWords(SizeOfPlan(i))));
  }
  Log(LogLevel::kInfo, line);
}

void PlanTuning::TellVerdicts() {
  for (const PlanVerdict& verdict : tuner_.verdicts()) {
    std::string line =
        absl::StrFormat("model '%s': autotune: %.3f ms a step with buckets of %s, %.3f ms with %s",
                        options_.model_name, verdict.challenger_s * kMillis,
                        InWords(SizeOfPlan(verdict.challenger)), verdict.current_s * kMillis,
                        InWords(SizeOfPlan(verdict.current)));
    if (verdict.is_final) {
      absl::StrAppendFormat(&line, "; faster by %.3f ms, noise %.3f ms: %s",
                            verdict.gain_s * kMillis, verdict.noise_s * kMillis,
                            verdict.is_taken ? "taken" : "not taken");
    } else {
      absl::StrAppend(&line, ", in a turn each");
    }
    Log(LogLevel::kInfo, line);
    WriteRow(verdict.challenger, verdict.challenger_s);
  }
  if (!tuner_.verdicts().empty()) {
    WriteRow(tuner_.verdicts().front().current, tuner_.verdicts().front().current_s);
  }
}

// Bagua's score is the speed: GiB of tensors a second.
void PlanTuning::WriteRow(size_t plan, double step_s) {
  if (csv_path_.empty() || step_s <= 0) return;
  uint64_t size_bytes = 0;
  for (const TensorSpec& tensor : candidates_.plans[plan].tensors())
    size_bytes += tensor.size_bytes();
  std::ofstream file(csv_path_, std::ios::app);
  file.seekp(0, std::ios::end);
  if (file.tellp() == 0) file << "bucket_size_2p,is_hierarchical_reduce,score,train_iter,setup\n";
  file << absl::StrFormat("%d,False,%.6f,%d,\n", std::bit_width(SizeOfPlan(plan)) - 1,
                          static_cast<double>(size_bytes) / (1 << 30) / step_s, rounds_seen_);
  file.close();  // which writes what is buffered
  if (file) return;
  Log(LogLevel::kWarning,
      absl::StrCat("model '", options_.model_name, "': autotune cannot write to ", csv_path_,
                   "; it goes on without that file. Look at the disk and the folder"));
  csv_path_.clear();
}

}  // namespace pelton
