// How one rank of a communicator comes to its end of it.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_ARRIVAL_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_ARRIVAL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace pelton::stand_in {

// Threads: one at a time. Owns: what the communicator needs, which it outlives; gone in bounded
// time, also while ranks are missing.
class Arrival {
 public:
  virtual ~Arrival() = default;
  // The rank's communicator, once all have arrived; null before. Once. Blocks: never. Errors: what
  // kept the ranks from meeting.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Take() = 0;
  // This rank has begun to end its communicator, and the second: all have, which is what NCCL's
  // calls for it return after. Blocks: AwaitLeft: until then, where the world of ranks can tell.
  virtual void Leave() {}
  virtual void AwaitLeft() {}
};

}  // namespace pelton::stand_in

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_ARRIVAL_H_
