// One-peer exchange by a rule that every rank computes for itself.
#ifndef PELTON_COMM_TOPOLOGY_SHIFT_ONE_H_
#define PELTON_COMM_TOPOLOGY_SHIFT_ONE_H_

#include <cstdint>
#include <optional>

#include "comm/topology/peer_source.h"
#include "core/base/ids.h"

namespace pelton {

// Who a rank is, among how many.
struct Seat {
  Rank rank;
  WorldSize world_size{1};
};

// The peer of `seat.rank` at `step`. With h = n / 2 and n even, rank r of the lower half meets
// h + (step + r) mod h of the upper half: after h steps each of the lower has met each of the upper
// half. With n odd, r meets (step - r) mod n; one rank meets itself and sits the step out: after n
// steps each has met every other once, and sat out once. Alone, it sits out always.
// Source: even n: Bagua's shift_one.
Rank ShiftOnePeer(Seat seat, uint64_t step);

// Threads: any. Owns: nothing.
class ShiftOne final : public PeerSource {
 public:
  explicit ShiftOne(Seat seat) : seat_(seat) {}
  std::optional<Rank> PeerAt(uint64_t step) override { return ShiftOnePeer(seat_, step); }

 private:
  const Seat seat_;
};

}  // namespace pelton

#endif  // PELTON_COMM_TOPOLOGY_SHIFT_ONE_H_
