// A tensor becomes its mean with the neighbours' in a graph: what neighbour averaging is made of.
#ifndef PELTON_ALGORITHMS_STAGE_NEIGHBOR_MEAN_H_
#define PELTON_ALGORITHMS_STAGE_NEIGHBOR_MEAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/graph/graph_sequence.h"
#include "comm/scratch.h"
#include "comm/topology/peer_source.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// What a rank tells its neighbours in a graph, and what they tell it.
// One message to each destination and one from each source, all of one size, as sends and receives,
// so that any communicator carries them.
// Threads: its stage's. Owns: memory for what comes, as much as the most sources so far need.
class NeighborMessages {
 public:
  // `name`: of the memory.
  NeighborMessages(Communicator& communicator, std::string name, uint64_t message_bytes)
      : communicator_(communicator), name_(std::move(name)), message_bytes_(message_bytes) {}

  // Begins: `message` goes to all destinations, and stays as it is until it is done. Requires: what
  // was begun before is done. Errors: those of Scratch::Create, where there are more sources than
  // ever before.
  absl::Status Begin(const Neighborhood& neighborhood, Location message);
  // True once all are there. Blocks: never. Errors: those of OperationBatch::Advance.
  absl::StatusOr<bool> Advance(BucketRun& run) { return batch_.Advance(run); }
  // From source number `index`.
  const std::byte* from(size_t index) const { return received_->data() + index * message_bytes_; }

 private:
  absl::Status MakeRoom(size_t source_count);
  void Post(OperationKind kind, Rank peer, Location location);

  Communicator& communicator_;
  const std::string name_;
  const uint64_t message_bytes_;
  std::unique_ptr<Scratch> received_;  // null: no source yet
  size_t capacity_ = 0;                // sources
  OperationBatch batch_;
};

// With W the weights of the round's graph (of step round - 1), x becomes
//   W_ii x + the sum over the sources j, ascending, of W_ji x_j
// from the left, rounded as LinearCombination does. In each round whose number is a multiple of the
// global interval, where there is one, it becomes the mean over all ranks instead (Gossip-PGA).
// Steps: a send for each destination and a receive for each source; in a global round an allreduce.
// Bytes: the tensor to each destination; in a global round those of the communicator's allreduce.
// Source: Chen et al., Accelerating Gossip SGD with Periodic Global Averaging, arXiv 2105.09080,
// algorithm 1; its H is the global interval.
// Threads: its stage's. Owns: its graphs, and memory for what comes.
class NeighborMean {
 public:
  // What is averaged over. Threads: a value. Owns: the graphs.
  struct Over {
    std::unique_ptr<GraphSequence> graphs;  // of the communicator's ranks
    uint64_t global_interval = 0;           // rounds; 0: none is global
  };
  // The tensor. Threads: a value. Owns: nothing.
  struct Shape {
    DType dtype = DType::kFloat32;
    uint64_t count = 0;
  };

  // `name`: of the memory.
  NeighborMean(Communicator& communicator, std::string name, Over over, Shape shape)
      : communicator_(communicator.id()),
        global_interval_(over.global_interval),
        shape_(shape),
        neighbors_(std::move(over.graphs), communicator.rank()),
        messages_(communicator, std::move(name), shape.count * SizeOf(shape.dtype)) {}

  // Begins; `tensor` is at `location` for operations, and is nobody else's until it is done.
  // Errors: those of NeighborMessages::Begin.
  absl::Status Begin(const BucketRun& run, std::byte* tensor, Location location);
  // True once the tensor is the mean. Blocks: never. Errors: those of OperationBatch::Advance.
  absl::StatusOr<bool> Advance(BucketRun& run);

 private:
  void Average() const;

  const CommunicatorId communicator_;
  const uint64_t global_interval_;
  const Shape shape_;
  GraphNeighbors neighbors_;
  NeighborMessages messages_;
  OperationBatch global_;
  bool is_global_ = false;
  std::byte* tensor_ = nullptr;
  Neighborhood now_;
};

// The bucket becomes that mean.
std::unique_ptr<Stage> MakeNeighborMeanStage(Communicator& communicator, NeighborMean::Over over,
                                             const BucketLayout& layout);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_NEIGHBOR_MEAN_H_
