// An operation as calls of NCCL.
#ifndef PELTON_COMM_TRANSPORT_NCCL_SUBMISSION_H_
#define PELTON_COMM_TRANSPORT_NCCL_SUBMISSION_H_

#include "absl/strings/string_view.h"
#include "comm/transport/nccl/flight.h"
#include "comm/transport/nccl/nccl_library.h"

namespace pelton::nccl {

// Where a submission goes. Threads: a value. Owns: nothing.
struct Destination {
  int rank = 0;
  int rank_count = 1;
  int peer = 0;             // of a send or receive, as this communicator numbers ranks
  void* scratch = nullptr;  // a few bytes on the device, for a barrier
  cuda::StreamHandle stream = nullptr;
};

// Puts the operation on the stream. NCCL has no gather, scatter and alltoall in every version: they
// are a group of sends and receives, to itself too; an operation between neighbours is one without.
// A barrier is a sum of one number, so that the streams of the ranks wait for each other, too.
// Returns NCCL's result. Blocks: never.
int Submit(const Flight& flight, const Destination& to, const NcclTable& calls, Handle comm);
// Whether NCCL has anything to do for it.
bool MovesAnything(const Flight& flight);
// What to call it in errors.
absl::string_view CallOf(OperationKind kind);

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_SUBMISSION_H_
