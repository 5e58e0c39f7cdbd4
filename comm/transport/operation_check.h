// What every transport refuses before it posts anything: one place, one wording.
#ifndef PELTON_COMM_TRANSPORT_OPERATION_CHECK_H_
#define PELTON_COMM_TRANSPORT_OPERATION_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// Checks the fields of `operation` that do not need memory: kind, dtype, op, peer and count.
// Errors: InvalidArgument: names the rank, the field and its value; also for the kinds that no
// transport runs yet.
absl::Status CheckOperation(const Operation& operation, Rank rank, WorldSize world_size);

// The addresses of an operation that CheckOperation accepted; null where nothing is read or
// written. Threads: a value. Owns: nothing.
struct OperationMemory {
  std::byte* source = nullptr;
  std::byte* target = nullptr;
};

// Errors: InvalidArgument: a region that does not exist, an extent outside of it, a null address.
absl::StatusOr<OperationMemory> ResolveOperation(const Operation& operation, Rank rank,
                                                 WorldSize world_size);

// Operation::flags of the messages of a collective of `kind`, or of a neighbour operation whose
// weights travel.
uint8_t FlagsOf(OperationKind kind, bool sends_weights = false);

// What DifferenceOfPair says, among other words, where `sends_weights` differs.
inline constexpr absl::string_view kOneEndSendsWeights = " gives weights to its destinations";

// DifferenceOf for a send and the receive it meets: "" if count and dtype agree; of messages of a
// collective also kind, op and bucket.
std::string DifferenceOfPair(const Operation& send, Rank sender, const Operation& recv,
                             Rank receiver);

// What a neighbour operation works with. Threads: a value. Owns: a share of its table.
struct NeighborOperation {
  std::shared_ptr<const WeightTable> table;  // shared: see WeightTable::Create
  OperationMemory memory;
};

// Finds both and checks every field of `operation`, of a neighbour kind. Errors: InvalidArgument:
// names the rank, the field and its value.
absl::StatusOr<NeighborOperation> CheckNeighborOperation(const Operation& operation, Rank rank,
                                                         WorldSize world_size);
// The same of a transport of the host's memory. Errors: also InvalidArgument: the stream is a
// device's.
absl::StatusOr<NeighborOperation> CheckNeighborOperation(const Operation& operation,
                                                         const Stream& stream, Rank rank,
                                                         WorldSize world_size);

// Marks communicators that run neighbour operations by themselves.
// A communicator that is one takes kNeighborAllReduce and kNeighborAllGather in Launch, with the
// results, errors and guarantees of collectives/neighbor_communicator.h, which then adds nothing;
// one that keeps less of EDGE-1, such as NCCL's, says so itself.
// Threads: any. Owns: nothing.
class NativeNeighbors {
 public:
  virtual ~NativeNeighbors() = default;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_OPERATION_CHECK_H_
