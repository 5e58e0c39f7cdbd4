#include "comm/topology/shift_one.h"

namespace pelton {
namespace {

// (a - b) mod n, never negative. Requires: a and b are below n.
uint64_t Difference(uint64_t a, uint64_t b, uint64_t n) { return (a + n - b) % n; }

}  // namespace

Rank ShiftOnePeer(Seat seat, uint64_t step) {
  const auto size = static_cast<uint64_t>(seat.world_size.value());
  const auto rank = static_cast<uint64_t>(seat.rank.value());
  uint64_t peer = 0;
  if (size % 2 == 1) {
    peer = Difference(step % size, rank, size);
  } else if (const uint64_t half = size / 2; rank < half) {
    peer = (step % half + rank) % half + half;
  } else {
    peer = Difference(rank - half, step % half, half);
  }
  return Rank(static_cast<int32_t>(peer));
}

}  // namespace pelton
