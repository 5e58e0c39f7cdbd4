// What keeping the state of the round before costs (ModelOptions::commits_state): two models of two
// ranks, one with it and one without, whose rounds take turns. Ranks are threads of one process.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/model.h"
#include "backend/test_ranks.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr int kRanks = 2;
constexpr uint64_t kElements = uint64_t{1} << 22;  // 16 MiB in buckets of the default size
constexpr int kTensors = 8;
constexpr int kRounds = 41;

struct Case {
  const char* name;
  const char* algorithm;
  AlgorithmOptions options;
};

absl::StatusOr<std::unique_ptr<Model>> Make(Backend& backend, const Case& one, bool commits) {
  ModelOptions options;
  options.name = commits ? "keeps" : "changes";
  options.group = Group::World(backend.world_size());
  options.algorithm = one.algorithm;
  options.algorithm_options = one.options;
  options.commits_state = commits;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < kTensors; ++i) {
    specs.push_back({.name = std::to_string(i), .count = kElements / kTensors});
  }
  return Model::Create(backend, options, std::move(specs));
}

// Units: seconds.
absl::StatusOr<double> TimeRound(ModelRounds& rounds) {
  for (int i = 0; i < kTensors; ++i) {
    const SlotId slot(i);
    std::memset(rounds.DataOf(slot), 0, kElements / kTensors * sizeof(float));
  }
  const absl::Time start = Clock::Real().Now();
  for (int i = 0; i < kTensors; ++i) RETURN_IF_ERROR(rounds.MarkReady(SlotId(i)));
  RETURN_IF_ERROR(rounds.EndRound());
  RETURN_IF_ERROR(rounds.WaitRound(start + absl::Minutes(5)));
  return absl::ToDoubleSeconds(Clock::Real().Now() - start);
}

double Median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::Status Measure(const BackendOptions& given, const Case& one) {
  BackendOptions options = given;
  options.operation_timeout = options.join_timeout = absl::Minutes(5);
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, Backend::Start(options));
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> changes, Make(*backend, one, false));
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> keeps, Make(*backend, one, true));
  std::vector<double> without;
  std::vector<double> ratios;
  for (int round = 0; round < kRounds; ++round) {
    ASSIGN_OR_RETURN(const double plain, TimeRound(changes->rounds()));
    ASSIGN_OR_RETURN(const double kept, TimeRound(keeps->rounds()));
    if (round == 0) continue;  // memory is touched for the first time
    without.push_back(plain);
    ratios.push_back(kept / plain);
  }
  if (options.rank == Rank(0)) {
    std::printf("%-32s %8.2f ms a round; with the state kept %5.2f times that\n", one.name,
                Median(without) * 1e3, Median(ratios));
  }
  return Barrier(backend->control(), "end", Clock::Real().Now() + absl::Minutes(5));
}

void Main() {
  const Case cases[] = {
      {"local_sgd (keeps nothing)", "local_sgd", {}},
      {"bytegrad, one_bit with feedback",
       "bytegrad",
       {{"codec", "one_bit"}, {"hierarchical", "false"}}},
      {"diloco (anchor and velocity)", "diloco", {}},
  };
  std::printf("%llu MiB of float32, %d ranks in shared memory; medians of %d pairs of rounds\n",
              static_cast<unsigned long long>(kElements * sizeof(float) >> 20), kRanks,
              kRounds - 1);
  for (const Case& one : cases) {
    const auto ended =
        RunRanks(kRanks, [&](const BackendOptions& options) { return Measure(options, one); });
    for (const absl::Status& status : ended) PELTON_CHECK_OK(status);
  }
}

}  // namespace
}  // namespace pelton

int main() {
  pelton::Main();
  return 0;
}
