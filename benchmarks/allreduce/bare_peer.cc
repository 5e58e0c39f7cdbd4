// Times the copies and the sum of an allreduce of private memory between two processes, without a
// runtime: what the machine gives a loop that stages through shared memory. See run.py.
//
//   bare_peer 2 CASE...
//
// Per segment of 1 MiB each process copies the half that its peer reduces into shared memory, adds
// the peer's copy to its own half, shows the sum, and copies the peer's sum back, with a count in
// shared memory after each of the first two steps. There are no errors, deadlines, parking or other
// operations. See timing.h for the cases and what is printed.
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "benchmarks/allreduce/timing.h"

namespace {

constexpr size_t kSegmentFloats = size_t{1} << 18;

struct alignas(64) Side {
  std::atomic<long> step;
  alignas(64) float staged[kSegmentFloats / 2];
  float summed[kSegmentFloats / 2];
};

void Meet(Side& own, const Side& peer) {
  const long step = own.step.load(std::memory_order_relaxed) + 1;
  own.step.store(step, std::memory_order_release);
  while (peer.step.load(std::memory_order_acquire) < step) _mm_pause();
}

void Add(float* own, const float* peer, float* shown, size_t count) {
  for (size_t i = 0; i < count; ++i) shown[i] = own[i] += peer[i];
}

void AllReduce(int rank, float* data, size_t count, Side* sides) {
  Side& own = sides[rank];
  const Side& peer = sides[1 - rank];
  for (size_t begin = 0; begin < count; begin += kSegmentFloats) {
    const size_t half = std::min(kSegmentFloats, count - begin) / 2;
    float* const kept = data + begin + rank * half;
    float* const given = data + begin + (1 - rank) * half;
    std::memcpy(own.staged, given, half * sizeof(float));
    Meet(own, peer);
    Add(kept, peer.staged, own.summed, half);
    Meet(own, peer);
    std::memcpy(given, peer.summed, half * sizeof(float));
  }
}

void Pin(int core) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  sched_setaffinity(0, sizeof only, &only);
}

void RunRank(int rank, const std::vector<pelton::timing::Case>& cases, Side* sides) {
  Pin(rank);
  for (const pelton::timing::Case& timed : cases) {
    std::vector<float> data(timed.bytes / sizeof(float));
    pelton::timing::Time(timed, rank == 0,
                         [&] { AllReduce(rank, data.data(), data.size(), sides); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || std::atoi(argv[1]) != 2) {
    std::fprintf(stderr, "usage: bare_peer 2 CASE... (it is written for two ranks)\n");
    return 2;
  }
  const auto cases = pelton::timing::ParseCases(argv + 2, argv + argc);
  void* const shared =
      mmap(nullptr, 2 * sizeof(Side), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  const bool is_child = fork() == 0;
  RunRank(is_child ? 1 : 0, cases, static_cast<Side*>(shared));
  if (is_child) return 0;
  int status = 0;
  wait(&status);
  return status != 0;
}
