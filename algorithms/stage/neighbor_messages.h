// What a rank tells its neighbours in a graph, and what they tell it.
#ifndef PELTON_ALGORITHMS_STAGE_NEIGHBOR_MESSAGES_H_
#define PELTON_ALGORITHMS_STAGE_NEIGHBOR_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/scratch.h"
#include "core/pipeline/operation_batch.h"
#include "core/pipeline/stage.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// One message to each destination and one from each source, all of one size, as sends and receives,
// so that any communicator carries them.
// Threads: its stage's. Owns: memory for what comes.
class NeighborMessages {
 public:
  // For a rank that has `most_sources` at most. Errors: those of Scratch::Create.
  static absl::StatusOr<std::unique_ptr<NeighborMessages>> Create(Communicator& communicator,
                                                                  const std::string& name,
                                                                  uint64_t message_bytes,
                                                                  size_t most_sources);

  // Begins: `message` goes to all destinations, and stays as it is until it is done.
  void Begin(const Neighborhood& neighborhood, Location message);
  // True once all are there. Blocks: never. Errors: those of OperationBatch::Advance.
  absl::StatusOr<bool> Advance(BucketRun& run) { return batch_.Advance(run); }
  // From source number `index`.
  const std::byte* from(size_t index) const { return received_->data() + index * message_bytes_; }

 private:
  NeighborMessages(CommunicatorId communicator, uint64_t message_bytes,
                   std::unique_ptr<Scratch> received)
      : communicator_(communicator),
        message_bytes_(message_bytes),
        received_(std::move(received)) {}

  void Post(OperationKind kind, Rank peer, Location location);

  const CommunicatorId communicator_;
  const uint64_t message_bytes_;
  const std::unique_ptr<Scratch> received_;
  OperationBatch batch_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_NEIGHBOR_MESSAGES_H_
