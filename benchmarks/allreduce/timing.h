// How every peer in C++ times its allreduce; timing.py does the same in Python. What is timed, and
// how often, comes from run.py.
#ifndef PELTON_BENCHMARKS_ALLREDUCE_TIMING_H_
#define PELTON_BENCHMARKS_ALLREDUCE_TIMING_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace pelton::timing {

// One argument of a peer, "BYTES:ITERATIONS:BATCH": an allreduce of so many bytes, so often, of
// which so many are timed together.
struct Case {
  size_t bytes;
  int iterations;
  int batch;
};

inline std::vector<Case> ParseCases(char** begin, char** end) {
  std::vector<Case> cases;
  for (char** word = begin; word != end; ++word) {
    Case parsed{};
    if (std::sscanf(*word, "%zu:%d:%d", &parsed.bytes, &parsed.iterations, &parsed.batch) == 3) {
      cases.push_back(parsed);
    }
  }
  return cases;
}

// Prints "BYTES MEDIAN_SECONDS MIN_SECONDS" of one `body()`, if `prints`.
template <typename Body>
void Time(const Case& timed, bool prints, Body body) {
  std::vector<double> seconds;
  for (int i = -(timed.iterations / 10 + 2); i < timed.iterations; i += timed.batch) {
    const auto begin = std::chrono::steady_clock::now();
    for (int j = 0; j < timed.batch; ++j) body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i >= 0) seconds.push_back(took.count() / timed.batch);  // the others warm up
  }
  std::sort(seconds.begin(), seconds.end());
  if (!prints) return;
  std::printf("%zu %.9f %.9f\n", timed.bytes, seconds[seconds.size() / 2], seconds[0]);
  std::fflush(stdout);
}

}  // namespace pelton::timing

#endif  // PELTON_BENCHMARKS_ALLREDUCE_TIMING_H_
