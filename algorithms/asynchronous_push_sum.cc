// Asynchronous push-sum: beside training, and on no step's path, each rank gives shares of its
// weights along the edges of a graph that may be directed and change, in rounds of its own. No rank
// waits for another one.
//
// A round at rank i, over a window (algorithms/stage/push_to_windows.h), with the numerator s that
// begins as the weights and the share w that begins at 1:
//   s += by how much training has changed the weights
//   s, w += what lies in this rank's slots
//   if w is at least 1 / 2: 1 / (1 + destinations) of s and of w is added to the slot that each
//   destination has for this rank, and the rest of both is kept; destinations are those that have
//   collected what was there
//   later: weights += s / w - the weights as they were
// The sums of s and of w over all ranks and slots are kept, up to rounding, whatever ranks learn
// meanwhile. The mean of the weights s / w is not: a rank's s / w counts by its w. In the long run
// all ranks have the sum of s over the sum of w for their weights, so that every rank's training
// counts alike. backend/averaging_loop.h takes the snapshots, adds the results and stops the ranks.
// When all have been asked to stop, each has a last round that only collects; s and w go on after
// it, from whichever weights there are then.
//
// A rank whose rounds stand still holds up nobody on its own host (push_to_windows.h); ranks on
// other hosts may have too little to give until it goes on. Nobody's training waits.
//
// Steps: one accumulate per bucket, destination and round, and one update. Bytes: for a bucket of B
// bytes B + 4 to each destination (float64: B + 8; 16-bit tensors, whose numerators are float32:
// 2 B + 4), and nothing in a round that gives nothing. Memory: 2 B (16-bit tensors: 3 B), and up to
// 4 B for each source (16-bit tensors: 8 B).
// Result: depends on when the ranks come to their rounds; ranks differ.
// Source: after Assran et al., Stochastic Gradient Push for Distributed Deep Learning, arXiv
// 1811.10792, whose ranks are at the same round, and Assran and Rabbat, Asynchronous Gradient-Push,
// arXiv 1803.08950, whose ranks give in each of their rounds.
#include <memory>
#include <string>
#include <utility>

#include "algorithms/stage/alone_algorithm.h"
#include "algorithms/stage/graph_options.h"
#include "algorithms/stage/push_to_windows.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class AsynchronousPushSum final : public AloneAlgorithm {
 public:
  AsynchronousPushSum()
      : AloneAlgorithm(GraphOptions("one_peer_exponential"),
                       "what ranks give their neighbours has to add up to what they had") {}
  std::string BytesSent() const override {
    return "B and one element to each destination, 16-bit tensors as float32, and nothing in a "
           "round in which it has too little to give";
  }

 private:
  absl::StatusOr<std::unique_ptr<Stage>> StageFor(
      const BucketLayout& layout, const Tiers& tiers,
      std::unique_ptr<GraphSequence> graphs) const override {
    return MakePushToWindowsStage(layout, tiers, std::move(graphs));
  }
};

REGISTER_ALGORITHM(
    asynchronous_push_sum,
    "shares of weights over directed and changing graphs, on a timer beside training",
    AsynchronousPushSum);

}  // namespace
}  // namespace pelton
