#include "backend/root.h"

#include <utility>

#include "core/actor/context.h"

namespace pelton {

void Root::Handle(OrderReceived order) {
  if (order.kind == Order::Kind::kPeerLeft && order.culprit.has_value()) {
    (void)context().SendAfter(*this, kGrace, GraceOver{*order.culprit, std::move(order.reason)});
  } else {
    sink_->Fail(order.reason);
  }
}

void Root::Handle(GraceOver over) { sink_->LoseMember(over.rank, over.reason); }

void Root::Handle(FailureHere failure) { sink_->TellOthers(failure.reason); }

}  // namespace pelton
