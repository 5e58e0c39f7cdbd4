// Average consensus of a simulated world: how far its ranks are from their mean, round by round.
#ifndef PELTON_BENCHMARKS_GRAPHS_CONSENSUS_SIMULATION_H_
#define PELTON_BENCHMARKS_GRAPHS_CONSENSUS_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/sim/network.h"
#include "core/base/ids.h"
#include "core/registry/option_table.h"

namespace pelton {

// Threads: a value. Owns: copies.
struct ConsensusOptions {
  std::string graph = "ring";  // by its registered name
  Options graph_options;
  WorldSize ranks{16};
  uint64_t rounds = 100;
  uint64_t count = 1000;  // float64 elements of each rank
  LinkModel link;         // without jitter
  uint64_t seed = 1;      // of the elements
};

// Threads: a value.
struct ConsensusRound {
  // The root of the sum over ranks and elements of (x - mean)^2, of what it was before round 1.
  double error = 0;
  // The same, of the product of the graphs' matrices with the first elements, in plain loops that
  // know of no rank, message or communicator; 0 unless asked for.
  double expected = 0;
  absl::Duration time;  // virtual, from the start until the last rank had completed the round
};

// Threads: a value. Owns: the rounds.
struct ConsensusResult {
  std::vector<ConsensusRound> rounds;
  uint64_t sent_bytes = 0;  // by all ranks
};

// Runs `options.rounds` neighbour averages on every rank, each rank at its own pace, in virtual
// time in the calling thread. Blocks: for the computation. Errors: those of MakeGraphs and of the
// operations; Internal: the ranks wait for each other.
absl::StatusOr<ConsensusResult> SimulateConsensus(const ConsensusOptions& options,
                                                  bool computes_expected);

}  // namespace pelton

#endif  // PELTON_BENCHMARKS_GRAPHS_CONSENSUS_SIMULATION_H_
