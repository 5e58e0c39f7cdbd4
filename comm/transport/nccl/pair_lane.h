// The lane of one direction to one peer, opened when it is first needed.
#ifndef PELTON_COMM_TRANSPORT_NCCL_PAIR_LANE_H_
#define PELTON_COMM_TRANSPORT_NCCL_PAIR_LANE_H_

#include <memory>

#include "absl/status/status.h"
#include "comm/communicator.h"
#include "comm/transport/nccl/lane.h"

namespace pelton::nccl {

// The sender is rank 0 of a NCCL communicator of two and tells the receiver its id over the host.
// Neither waits: the id travels, and NCCL connects, while the first messages queue.
// Threads: that of its communicator. Owns: the lane.
class PairLane {
 public:
  PairLane(const LaneResources& resources, const NcclLibrary& library, Communicator& host,
           std::shared_ptr<NativeCommunicator> native, bool sends, Rank peer)
      : library_(library),
        posts_(resources.posts),
        host_(host),
        sends_(sends),
        peer_(peer),
        lane_(resources, std::move(native), /*peer=*/sends ? 1 : 0) {}

  // Takes the next steps; true if anything moved. Errors: what ends the communicator.
  absl::StatusOr<bool> Advance(absl::Time now) {
    if (opening_ != Opening::kBegun) RETURN_IF_ERROR(Open());
    return lane_.Advance(now);
  }
  Lane& lane() { return lane_; }

 private:
  enum class Opening { kNew, kIdUnderWay, kBegun };

  absl::Status Open();
  absl::StatusOr<Completion> ExchangeId();

  const NcclLibrary& library_;
  PostExchange& posts_;
  Communicator& host_;
  const bool sends_;
  const Rank peer_;
  UniqueId id_{};
  Completion id_message_;
  Opening opening_ = Opening::kNew;
  Lane lane_;
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_PAIR_LANE_H_
