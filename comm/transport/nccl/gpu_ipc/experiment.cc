#include "comm/transport/nccl/gpu_ipc/experiment.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace pelton::gpu_ipc {
namespace {

// Of a flag that is a number. Bounded so that what is computed stays within a float's integers.
struct Number {
  absl::string_view name;
  int Experiment::*field;
  int least;
  int most;
};

constexpr int kMostBytes = 1 << 30;
constexpr Number kNumbers[] = {
    {"ranks", &Experiment::ranks, 1, 2},
    {"buckets", &Experiment::buckets, 1, kMostBuckets},
    {"bucket-bytes", &Experiment::bucket_bytes, 16, kMostBytes},
    {"kernels", &Experiment::kernels, 0, 10'000},
    {"kernel-bytes", &Experiment::kernel_bytes, 16, kMostBytes},
    {"passes", &Experiment::passes, 0, 64},
    {"steps", &Experiment::steps, 1, 10'000},
    {"turns", &Experiment::turns, 1, 100},
    {"limit-s", &Experiment::limit_s, 1, 3600},
};

}  // namespace

absl::Status Experiment::Set(absl::string_view name, absl::string_view value) {
  if (name == "trainers-id" || name == "daemons-id") {
    (name == "trainers-id" ? trainers_id : daemons_id) = std::string(value);
    return absl::OkStatus();
  }
  for (const Number& number : kNumbers) {
    if (name != number.name) continue;
    int taken = 0;
    if (absl::SimpleAtoi(value, &taken) && number.least <= taken && taken <= number.most) {
      this->*number.field = taken;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " ", value, ": has to be ", number.least, " to ", number.most));
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no flag --", name));
}

std::vector<std::string> Experiment::ToFlags() const {
  std::vector<std::string> flags;
  for (const Number& number : kNumbers) {
    flags.push_back(absl::StrCat("--", number.name));
    flags.push_back(absl::StrCat(this->*number.field));
  }
  flags.insert(flags.end(), {"--trainers-id", trainers_id, "--daemons-id", daemons_id});
  return flags;
}

absl::Status OutOfTime(absl::string_view what) {
  return absl::DeadlineExceededError(
      absl::StrCat("the run's time was over before ", what, "; --limit-s gives it more"));
}

}  // namespace pelton::gpu_ipc
