#include "comm/topology/peer_source.h"

namespace pelton {

std::optional<Neighborhood> GraphNeighbors::NeighborsAt(uint64_t step) {
  const uint64_t period = graphs_->period();
  const uint64_t of_period = period == 0 ? step : step % period;
  if (!last_.has_value() || step_ != of_period) {
    last_ = graphs_->At(of_period).Of(rank_);
    step_ = of_period;
  }
  return last_;
}

std::optional<Neighborhood> PairNeighbors::NeighborsAt(uint64_t step) {
  const std::optional<Rank> peer = peers_.PeerAt(step);
  if (!peer.has_value()) return std::nullopt;
  if (*peer == rank_) return Neighborhood();
  return Neighborhood{.own = 0.5, .sources = {{*peer, 0.5}}, .destinations = {{*peer, 0.5}}};
}

}  // namespace pelton
