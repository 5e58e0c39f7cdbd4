#include "comm/control/coordinator_reactors.h"

#include "comm/control/wire.h"
#include "core/base/status.h"

namespace pelton {

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::StatusOr<CallRoom> CallRoom::Reserve(const ActorRef<CoordinatorActor>& coordinator) {
  ASSIGN_OR_RETURN(CoordinatorRoom begin, coordinator.Reserve());
  ASSIGN_OR_RETURN(CoordinatorRoom cancel, coordinator.Reserve());
  return CallRoom{std::move(begin), std::move(cancel)};
}

void GrpcCall::Begin(std::string job, int64_t timeout_us, Feeding feed) {
  feed_ = std::move(feed);
  // It fails only where the coordinator has ended; the message, when it is dropped, answers then.
  room_.begin.Send(BeginCall{number_, OwedCall(this), std::move(job), timeout_us}).IgnoreError();
}

void GrpcCall::Answer(Reply reply) {
  if (!reply.status.ok()) return AnswerNow(reply.status);
  Fill(std::move(reply));
  End(grpc::Status::OK);
}

void GrpcCall::AnswerNow(const absl::Status& status) {
  // Marked as the coordinator's own.
  if (!status.ok()) context_->AddTrailingMetadata(wire::kOriginKey, wire::kOriginCoordinator);
  End(ToGrpc(status));
}

void GrpcCall::Cancel() {
  // Before the message: if that one is handled first, the actor sees this when the call begins.
  is_cancelled_.store(true);
  room_.cancel.Send(CancelCall{number_}).IgnoreError();  // one that has ended has answered it
}

void HeartbeatStream::Read(CoordinatorRoom room) {
  read_room_ = std::move(room);
  StartRead(&incoming_);
}

void HeartbeatStream::Write(proto::Order order, CoordinatorRoom room) {
  outgoing_ = std::move(order);
  write_room_ = std::move(room);
  StartWrite(&outgoing_);
}

void HeartbeatStream::End(const absl::Status& status) {
  // The order before it has said all, so that it needs no mark of origin.
  Finish(ToGrpc(status));
}

void HeartbeatStream::OnReadDone(bool ok) {
  if (!ok) return Break();
  const absl::Duration round_trip = absl::Microseconds(incoming_.round_trip_us());
  // Moved out, because the actor may give the next room before this one's Send has returned.
  CoordinatorRoom room = *std::move(read_room_);
  room.Send(HeartbeatCame{number_,
                          wire::FromProto(incoming_.caller()),
                          {Round(incoming_.round()), round_trip},
                          incoming_.number()})
      .IgnoreError();  // one that has ended has ended this stream
}

void HeartbeatStream::OnWriteDone(bool ok) {
  CoordinatorRoom room = *std::move(write_room_);
  room.Send(OrderWritten{number_, ok}).IgnoreError();
}

// The end of reading and a cancellation may come at the same time; the first one reports.
void HeartbeatStream::Break() {
  if (is_broken_.exchange(true)) return;
  break_room_.Send(StreamBroke{number_}).IgnoreError();
}

}  // namespace pelton
