#include "backend/root.h"

#include <utility>

#include "core/actor/context.h"

namespace pelton {

void Root::Handle(OrderReceived order) {
  if (order.kind == Order::Kind::kPeerLeft) {
    (void)context().SendAfter(*this, kGrace, GraceOver{std::move(order.reason)});
  } else {
    sink_->Fail(order.reason);
  }
}

void Root::Handle(GraceOver over) { sink_->Fail(over.reason); }

}  // namespace pelton
