// How both peers time: all ranks at once, in rounds that begin together; the slowest rank counts.
#ifndef PELTON_BENCHMARKS_WINDOWS_TIMING_H_
#define PELTON_BENCHMARKS_WINDOWS_TIMING_H_

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace pelton::timing {

constexpr int kMostRanks = 64;

// Memory that all ranks map. Threads: one a rank. Owns: nothing.
struct Board {
  std::atomic<int> arrived;
  double seconds[kMostRanks];

  // Until all ranks have come `number` times.
  void Meet(int ranks, int number) {
    arrived.fetch_add(1);
    while (arrived.load() < ranks * number) sched_yield();
  }
};

// Which rank of how many, and what it measures. Threads: a value. Owns: nothing.
struct Place {
  Board* board;
  int rank;
  int ranks;
  int* meetings;  // so far
};

// Prints "NAME BYTES MEDIAN_SECONDS MIN_SECONDS" of a `body()` of the slowest rank, on rank 0.
template <typename Body>
void Time(const Place& place, const char* name, size_t bytes, Body body) {
  const int rounds = static_cast<int>(std::clamp<size_t>((size_t{1} << 30) / bytes, 9, 200));
  const int batch = bytes <= 65536 ? 100 : 1;
  std::vector<double> seconds;
  for (int round = -2; round < rounds; ++round) {
    place.board->Meet(place.ranks, ++*place.meetings);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    place.board->seconds[place.rank] = took.count() / batch;
    place.board->Meet(place.ranks, ++*place.meetings);
    const double* const all = place.board->seconds;
    if (round >= 0) seconds.push_back(*std::max_element(all, all + place.ranks));
  }
  std::sort(seconds.begin(), seconds.end());
  if (place.rank != 0) return;
  std::printf("%s %zu %.9f %.9f\n", name, bytes, seconds[seconds.size() / 2], seconds[0]);
  std::fflush(stdout);
}

}  // namespace pelton::timing

#endif  // PELTON_BENCHMARKS_WINDOWS_TIMING_H_
