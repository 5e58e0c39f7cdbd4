#include "comm/transport/nccl/pair_lane.h"

#include "comm/collectives.h"
#include "core/base/status.h"

namespace pelton::nccl {

absl::StatusOr<Completion> PairLane::ExchangeId() {
  const Tensor id{id_.bytes, sizeof id_.bytes, DType::kUInt8};
  if (!sends_) return Recv(host_, id, peer_, kLaneIdTag);
  RETURN_IF_ERROR(
      library_.ToStatus(library_.calls().get_unique_id(&id_), "ncclGetUniqueId", nullptr));
  return Send(host_, id, peer_, kLaneIdTag);
}

absl::Status PairLane::Open() {
  if (opening_ == Opening::kNew) {
    if (!posts_.HasRoom()) return absl::OkStatus();
    ASSIGN_OR_RETURN(id_message_, ExchangeId());
    posts_.Note();
    opening_ = Opening::kIdUnderWay;
  }
  const Communicator::State state = host_.Query(id_message_);
  if (!state.done) return absl::OkStatus();
  RETURN_IF_ERROR(state.status);
  posts_.Seen();
  opening_ = Opening::kBegun;
  return lane_.Begin(id_, sends_ ? 0 : 1, 2);
}

}  // namespace pelton::nccl
