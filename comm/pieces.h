// The memory of an operation that another process holds.
#ifndef PELTON_COMM_PIECES_H_
#define PELTON_COMM_PIECES_H_

#include <cstdint>
#include <optional>

#include "core/memory/region.h"

namespace pelton {

// An allreduce's tensor, which its owner copies into a region of this process piece by piece, and
// out of it again: so a few pieces that stay in the cache carry a large tensor.
// Threads: the communicator's. Owns: as its implementation says.
class Pieces {
 public:
  virtual ~Pieces() = default;

  // Where the source of piece `index` lies, in a registered region; nothing while it is not there.
  // Whoever drives the communicator is called once it is. Pieces are taken in their order.
  virtual std::optional<Location> Take(uint64_t index) = 0;
  // The result of piece `index` lies where its source was. No rank of the host reaches there any
  // more.
  virtual void GiveBack(uint64_t index) = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_PIECES_H_
