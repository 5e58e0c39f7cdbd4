// An average over a graph that a seed draws, and one rank's part in it.
#ifndef PELTON_COMM_TRANSPORT_CONFORMANCE_AVERAGE_H_
#define PELTON_COMM_TRANSPORT_CONFORMANCE_AVERAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/transport/conformance/rank_exchange.h"
#include "core/base/draws.h"
#include "core/pipeline/weight_table.h"

namespace pelton::conformance {

// Each rank may send to each other one. Weights are powers of two and elements small whole numbers,
// so that sums are exact in any order. Threads: a value. Owns: the graph's weights.
struct Average {
  std::vector<std::vector<double>> weights;  // [source][destination]; 0: no edge
  uint64_t count = 0;                        // elements of float32
  uint64_t seed = 0;                         // of the elements
  int32_t tag = 0;
  bool in_place = false;
  bool in_region = false;

  float InputOf(size_t rank, uint64_t i) const;
  float ExpectedOf(size_t rank, uint64_t i) const;
  std::shared_ptr<const WeightTable> TableOf(size_t rank) const;
};

Average DrawAverage(Draws& draws, WorldSize size, uint64_t count);

// Threads: one at a time. Owns: its operation; average and memory outlive it.
class RankAverage {
 public:
  RankAverage(const Average& average, Rank rank, RankMemory& memory);

  absl::Status Launch(Communicator& communicator);
  absl::Status AwaitAll(Communicator& communicator, absl::Time deadline);
  // "" if the result is right, and a source that is not the target is as it was.
  std::string Check() const;

 private:
  float* Allocate(Arena& arena) const;

  const Average& average_;
  const size_t rank_;
  float* source_;
  float* target_;
  std::shared_ptr<const WeightTable> table_;
  Completion completion_;
};

}  // namespace pelton::conformance

#endif  // PELTON_COMM_TRANSPORT_CONFORMANCE_AVERAGE_H_
