// Compares Pelton's actors with CAF's in one process, in turns.
//
//   bazel run //benchmarks/actor:actor_benchmark -- [repetitions] [million messages per flood]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/actor/caf_runtime.h"
#include "benchmarks/actor/measurement.h"
#include "benchmarks/actor/pelton_runtime.h"

namespace pelton::benchmarks {
namespace {

constexpr int64_t kRounds = 300'000;
constexpr int64_t kRoundsAcrossThreads = 30'000;
constexpr int64_t kActors = 1'000'000;

struct Row {
  std::string what;
  const char* unit;
  std::function<double(Runtime&)> measure;
  // Samples, by runtime.
  std::vector<std::vector<double>> samples = {};
};

double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples.empty() ? 0 : samples[samples.size() / 2];
}

std::vector<Row> Rows(int64_t messages) {
  const auto millions_per_second = [](double nanoseconds) { return 1e3 / nanoseconds; };
  return {
      {"flood, one producer", "M msg/s",
       [=](Runtime& r) { return millions_per_second(r.Flood(1, messages)); }},
      {"flood, two producers", "M msg/s",
       [=](Runtime& r) { return millions_per_second(r.Flood(2, messages)); }},
      {"round trip, one worker", "ns", [](Runtime& r) { return r.RoundTrip(1, kRounds); }},
      {"round trip, two threads", "ns",
       [](Runtime& r) { return r.RoundTrip(2, kRoundsAcrossThreads); }},
  };
}

// Runtimes take turns within each repetition, so that a busy spell of the machine meets them all.
void Measure(std::vector<Row>& rows, const std::vector<std::unique_ptr<Runtime>>& runtimes,
             int repetitions) {
  for (Row& row : rows) row.samples.resize(runtimes.size());
  for (int i = 0; i < repetitions; ++i) {
    for (Row& row : rows) {
      for (size_t r = 0; r < runtimes.size(); ++r) {
        row.samples[r].push_back(row.measure(*runtimes[r]));
      }
    }
    std::fprintf(stderr, "\rrepetition %d of %d", i + 1, repetitions);
  }
  std::fprintf(stderr, "\n");
}

void PrintRow(const std::string& what, const char* unit, const std::vector<double>& values) {
  std::printf("%-26s %-8s", what.c_str(), unit);
  for (double value : values) std::printf(" %16.1f", value);
  // Against the last column, CAF.
  if (values.size() > 2 && values.back() > 0) std::printf("   %8.2f", values[0] / values.back());
  std::printf("\n");
}

void PrintTable(const std::vector<Row>& rows,
                const std::vector<std::unique_ptr<Runtime>>& runtimes) {
  std::printf("%-26s %-8s", "median of each", "");
  for (const auto& runtime : runtimes) std::printf(" %16s", runtime->name());
  std::printf("%s\n", runtimes.size() > 2 ? "   to CAF" : "   (CAF was not found)");
  for (const Row& row : rows) {
    std::vector<double> medians;
    for (const auto& samples : row.samples) medians.push_back(Median(samples));
    PrintRow(row.what, row.unit, medians);
    std::vector<double> best;
    for (const auto& samples : row.samples) {
      const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
      best.push_back(row.unit[0] == 'M' ? *high : *low);
    }
    PrintRow("  best", row.unit, best);
  }
}

// In a process of its own, so that memory which an earlier run left behind is not counted as free.
SpawnCost SpawnInChild(Runtime& runtime) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    const SpawnCost cost = runtime.Spawn(kActors);
    _exit(write(ends[1], &cost, sizeof(cost)) == sizeof(cost) ? 0 : 1);
  }
  close(ends[1]);
  SpawnCost cost;
  if (read(ends[0], &cost, sizeof(cost)) != sizeof(cost)) cost = {};
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return cost;
}

void PrintSpawn(const std::vector<std::unique_ptr<Runtime>>& runtimes, int repetitions) {
  std::vector<std::vector<double>> nanoseconds(runtimes.size());
  std::vector<std::vector<double>> bytes(runtimes.size());
  for (int i = 0; i < repetitions; ++i) {
    for (size_t r = 0; r < runtimes.size(); ++r) {
      const SpawnCost cost = SpawnInChild(*runtimes[r]);
      nanoseconds[r].push_back(cost.nanoseconds_per_actor);
      bytes[r].push_back(cost.bytes_per_actor);
    }
  }
  std::vector<double> medians;
  for (const auto& samples : nanoseconds) medians.push_back(Median(samples));
  PrintRow("a million actors, each", "ns", medians);
  medians.clear();
  for (const auto& samples : bytes) medians.push_back(Median(samples));
  PrintRow("a million actors, each", "bytes", medians);
}

int Main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 9;
  const int64_t messages = (argc > 2 ? std::atoll(argv[2]) : 3) * 1'000'000;
  std::vector<std::unique_ptr<Runtime>> runtimes;
  runtimes.push_back(MakePeltonRuntime(Sending::kPermits));
  runtimes.push_back(MakePeltonRuntime(Sending::kSend));
  if (auto caf = MakeCafRuntime()) runtimes.push_back(std::move(caf));
  std::vector<Row> rows = Rows(messages);
  Measure(rows, runtimes, repetitions);
  PrintTable(rows, runtimes);
  PrintSpawn(runtimes, std::min(repetitions, 3));
  return 0;
}

}  // namespace
}  // namespace pelton::benchmarks

int main(int argc, char** argv) { return pelton::benchmarks::Main(argc, argv); }
