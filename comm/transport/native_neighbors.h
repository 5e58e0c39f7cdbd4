// Marks communicators that run neighbour operations by themselves.
#ifndef PELTON_COMM_TRANSPORT_NATIVE_NEIGHBORS_H_
#define PELTON_COMM_TRANSPORT_NATIVE_NEIGHBORS_H_

namespace pelton {

// A communicator that is one takes kNeighborAllReduce and kNeighborAllGather in Launch, with the
// results, errors and guarantees of collectives/neighbor_communicator.h, which then adds nothing;
// one that keeps less of EDGE-1, such as NCCL's, says so itself.
// Threads: any. Owns: nothing.
class NativeNeighbors {
 public:
  virtual ~NativeNeighbors() = default;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_NATIVE_NEIGHBORS_H_
