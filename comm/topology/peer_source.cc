#include "comm/topology/peer_source.h"

namespace pelton {

Neighborhood GraphNeighbors::NeighborsAt(uint64_t step) {
  const uint64_t period = graphs_->period();
  const uint64_t of_period = period == 0 ? step : step % period;
  if (!last_.has_value() || step_ != of_period) {
    last_ = graphs_->At(of_period).Of(rank_);
    step_ = of_period;
  }
  return *last_;
}

}  // namespace pelton
