// What a collective does, apart from who waits for whom: the bytes it makes, and when they arrive.
// Kinds that the fabric has no recipe of its own for are programs: those of all ranks, run in one
// step.
#ifndef PELTON_COMM_TRANSPORT_SIM_OUTCOME_H_
#define PELTON_COMM_TRANSPORT_SIM_OUTCOME_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comm/transport/sim/network.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"

namespace pelton {

// What RunCollective and CompletionTimes know; RunAsPrograms has the others.
inline constexpr KindSet kSimKinds = {
    OperationKind::kBarrier,       OperationKind::kAllReduce, OperationKind::kReduce,
    OperationKind::kReduceScatter, OperationKind::kAllGather, OperationKind::kBroadcast,
    OperationKind::kGather,        OperationKind::kScatter,   OperationKind::kAllToAll};

// One rank's part in a collective: what it launched and where its memory is.
// Threads: a value. Owns: nothing.
struct Part {
  const Operation* operation;
  const std::byte* source;
};

// The bytes for the ranks' targets, taken from the sources when the collective begins: a target
// must not show them before its rank's completion. Shape: rank r's are [r * stride_bytes,
// r * stride_bytes + target_bytes[r]). Threads: immutable. Owns: the bytes.
struct Outcome {
  std::vector<std::byte> bytes;
  uint64_t stride_bytes = 0;  // 0: all ranks get the same
};

// Runs the collective that `parts` agree on, of kSimKinds, parts[r] being rank r's. Reductions are
// in rank order (SUM-1b).
Outcome RunCollective(absl::Span<const Part> parts);

// When each rank has all it is to receive and has sent all it is to send, if all are ready at
// `now`. Books the transfers of the flat recipe, `members[r]` being rank r's number in the
// network. Bytes that rank s sends to d, with S = count * size of an element:
//   allreduce       slice d of the source, then its own reduced slice: together 2 S / n
//   reduce_scatter, allgather, alltoall   S
//   reduce, gather  S to the root; broadcast, scatter  S from the root; barrier  0
std::vector<absl::Time> CompletionTimes(const Operation& operation, absl::Span<const Rank> members,
                                        absl::Time now, Network& network);

// Whether a recipe runs `operation` among so many ranks. Errors: Unimplemented: none does.
absl::Status CheckHasProgram(const Operation& operation, WorldSize world_size);

// Threads: a value. Owns: the bytes.
struct ProgramResult {
  Outcome outcome;
  std::vector<absl::Time> times;  // by rank; as CompletionTimes
};

// Runs the collective that `parts` agree on, for which CheckHasProgram is OK, parts[r] being rank
// r's and `members[r]` its number in the network, which books the transfers. A wave of a strand
// begins on a rank when the strand's wave before is done there, and local steps take no time.
ProgramResult RunAsPrograms(absl::Span<const Part> parts, absl::Span<const Rank> members,
                            absl::Time now, Network& network);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_SIM_OUTCOME_H_
