// What the actor benchmarks measure, once for Pelton and once for CAF.
#ifndef PELTON_BENCHMARKS_ACTOR_MEASUREMENT_H_
#define PELTON_BENCHMARKS_ACTOR_MEASUREMENT_H_

#include <cstddef>
#include <cstdint>

namespace pelton::benchmarks {

// A message of 32 bytes.
struct Payload {
  uint64_t words[4];
};

struct SpawnCost {
  double nanoseconds_per_actor = 0;  // spawned, and one message handled by each
  double bytes_per_actor = 0;        // resident memory
};

// One runtime under test. Every method starts its own threads and ends them.
// Threads: one. Owns: nothing between calls.
class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual const char* name() const = 0;
  // `producers` threads send `messages` in all to one actor on a pool of one worker.
  // Units: nanoseconds per handled message.
  virtual double Flood(int producers, int64_t messages) = 0;
  // Two actors on a pool of `workers` answer each other `rounds` times.
  // Units: nanoseconds per round trip.
  virtual double RoundTrip(int workers, int64_t rounds) = 0;
  // `count` actors alive at once on a pool of two workers.
  virtual SpawnCost Spawn(int64_t count) = 0;
};

// Resident memory of this process.
size_t ResidentBytes();

}  // namespace pelton::benchmarks

#endif  // PELTON_BENCHMARKS_ACTOR_MEASUREMENT_H_
