// What NCCL calls an operation's element type and reduction.
#ifndef PELTON_COMM_TRANSPORT_NCCL_OPERATION_MAP_H_
#define PELTON_COMM_TRANSPORT_NCCL_OPERATION_MAP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/transport/nccl/nccl_library.h"
#include "core/pipeline/operation.h"

namespace pelton::nccl {

// The kinds that Submit (flight_queue.h) knows. What any other kind would compute between its
// messages is for the host, and the memory is the device's.
inline constexpr KindSet kNcclKinds = {OperationKind::kBarrier,
                                       OperationKind::kAllReduce,
                                       OperationKind::kReduce,
                                       OperationKind::kReduceScatter,
                                       OperationKind::kAllGather,
                                       OperationKind::kBroadcast,
                                       OperationKind::kGather,
                                       OperationKind::kScatter,
                                       OperationKind::kAllToAll,
                                       OperationKind::kSend,
                                       OperationKind::kRecv,
                                       OperationKind::kNeighborAllReduce,
                                       OperationKind::kNeighborAllGather};

// `count` elements of the operation are `count * per_element` of `type`.
struct Mapping {
  Type type = Type::kInt8;
  uint64_t per_element = 1;
  Op op = Op::kSum;
};

// Whether NCCL can combine them: it has no bit operations, no int16, and of complex numbers only
// what goes part by part. Those of bool are MIN and MAX of bytes, which must be 0 or 1; BXOR is
// none.
bool Reduces(DType dtype, ReduceOp op);

// Bytes, for what is only moved. Errors: InvalidArgument: the kind is none of kNcclKinds; NCCL
// cannot reduce this, names dtype and op; both say what to do instead; it has no tags;
// Unimplemented: this version cannot.
absl::StatusOr<Mapping> MappingOf(const Operation& operation, const NcclLibrary& library);

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_OPERATION_MAP_H_
