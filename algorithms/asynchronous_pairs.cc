// Asynchronous pairs: beside training, and on no step's path, each rank takes the mean of its
// weights with one other rank at a time, in rounds of its own. No rank waits for another one,
// whatever the graph, and a slow rank holds up nobody.
//
// A round at rank i, over windows (algorithms/stage/pair_exchange.h):
//   x = weights + what answers to this rank's offers have given
//   for each offer x_k that lies here: d = (x_k - x) / 2; x += d, and -d is given back to rank k
//   x is offered to one neighbour, the next in turn
//   later: weights += by how much x has changed
// Each d is added at one end and subtracted at the other, so that the mean over the ranks is kept,
// up to rounding, whatever they learn meanwhile. backend/averaging_loop.h takes the snapshots, adds
// the results and stops the ranks. When all have been asked to stop, each has a last round that
// only collects.
//
// Windows are of float64 for weights of float64, else of float32; what is added to weights of 16
// bits is rounded to them.
//
// Steps: one put per bucket and round, another that withdraws an offer which nobody has answered,
// and one accumulate per answer. Bytes: for a bucket of B bytes B for the offer, and B for each
// answer, of which a rank's offer gets one at most; B more where it is withdrawn. Memory: 6 B, and
// for each neighbour up to 4 B of each of two windows.
// Result: depends on when the ranks come to their rounds; ranks differ.
// Source: after Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent, arXiv
// 1710.06952, whose ranks wait for the peer's answer; here an offer waits in the peer's memory.
#include <memory>
#include <string>
#include <utility>

#include "algorithms/stage/alone_algorithm.h"
#include "algorithms/stage/pair_exchange.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class AsynchronousPairs final : public AloneAlgorithm {
 public:
  AsynchronousPairs()
      : AloneAlgorithm(GraphOptions(), "what one rank adds another one subtracts") {}
  std::string BytesSent() const override {
    return "B to one neighbour, and B for each offer that it answers";
  }

 private:
  absl::StatusOr<std::unique_ptr<Stage>> StageFor(
      const BucketLayout& layout, const Tiers& tiers,
      std::unique_ptr<GraphSequence> graphs) const override {
    return MakePairExchangeStage(layout, tiers, std::move(graphs));
  }
};

REGISTER_ALGORITHM(asynchronous_pairs,
                   "means of two ranks at a time over a graph, on a timer beside training",
                   AsynchronousPairs);

}  // namespace
}  // namespace pelton
