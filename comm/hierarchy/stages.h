// A collective of several hosts' ranks as what one rank does in it: steps inside its host, and
// messages between hosts.
#ifndef PELTON_COMM_HIERARCHY_STAGES_H_
#define PELTON_COMM_HIERARCHY_STAGES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/collectives/program.h"
#include "comm/collectives/selection.h"
#include "comm/hierarchy/layout.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"

namespace pelton::hierarchy {

// The kinds that have stages. Any other collective runs by a flat recipe, whose messages take the
// wire that reaches the peer.
inline constexpr KindSet kStagedKinds = {OperationKind::kBarrier,   OperationKind::kAllReduce,
                                         OperationKind::kReduce,    OperationKind::kReduceScatter,
                                         OperationKind::kAllGather, OperationKind::kBroadcast};

// An operation of this host's ranks, with their numbers there. Its kScratch is the run's.
// Threads: a value. Owns: nothing.
struct InsideStep {
  OperationKind kind = OperationKind::kBroadcast;
  int32_t peer = kNoPeer;
  Piece source;
  Piece target;
  uint64_t count = 0;  // as the operation's
  ReduceOp reduce_op = ReduceOp::kSum;
};

// A part of a collective that moves on its own: `up`, then the messages, then `down`. The steps of
// all stages are launched in one order on all ranks of a host (Sequence in staged_run.h).
// Threads: a value. Owns: its lists.
struct Stage {
  Piece copied_from;  // this rank's own part, put in its place before all else; count 0: none
  Piece copied_to;
  std::vector<InsideStep> up;
  Program messages;         // none where this rank has no part in them
  std::vector<Rank> peers;  // the program's ranks, as ranks of the group
  Piece source;             // what the program's buffers are; their counts mean nothing
  Piece target;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t divisor = 1;
  std::vector<InsideStep> down;
};

struct StagedCollective {
  uint64_t scratch_count = 0;  // elements
  std::vector<Stage> stages;
};

// For group rank `rank`; `table` chooses the recipe of a rail's messages. `has_stages`: whether
// the kind is of kStagedKinds, or is taken as one that is not. L rails, H hosts, S bytes of a
// tensor, n ranks. Bytes that a host of L ranks sends and receives are of its rails together, each
// rail the L-th part.
//   allreduce       up: each slice l of L is reduced onto local rank l; messages: an allreduce of
//                   the slice along rail l; down: the slices go from their owners to all.
//                   A host sends 2 (H - 1) / H S with a recipe that is optimal in bytes.
//   reduce          the same; the messages are a reduce to the root's host, and down the slices go
//                   to the root. With a tree each host but the root's sends S.
//   broadcast       up: on the root's host; messages: a broadcast along each rail of its slice;
//                   down: on the other hosts the slices go to all. The root's host sends S once or,
//                   in a tree of many hosts, a few times.
//   reduce_scatter  up: chunk r of all is reduced onto rank r, or, of another host's r, onto a rank
//                   that sends it to r; r adds those of all hosts. A host sends a chunk for each
//                   rank that is not its own.
//   allgather       each rank sends its part to one rank of every other host; down: parts go to
//                   all. A host sends H - 1 times its ranks' parts.
//   barrier         none: the roll call (roll_call.h) was all of it.
//   all others      a flat recipe, and sums as it says.
//
// Order of sums: in rank order among the ranks of a host, then as the recipe says among the
// hosts; all hosts get the same bits, for one owner of each slice and host copies the rail's result
// (SUM-1a). The host's sum is rounded to the tensor's type, and so is the result: two roundings for
// float16 and bfloat16. AVG divides the sum over all ranks before the second; for the 16-bit types
// on hosts of one size a host passes on its mean, which cannot overflow, and the result is the mean
// of them. (On hosts of unequal size a mean of float16 comes here as one of float32: wide_mean.h.)
// Errors: those of SelectionTable::Select.
absl::StatusOr<StagedCollective> MakeStages(const Operation& operation, int32_t rank,
                                            const Layout& layout, const SelectionTable& table,
                                            bool has_stages);

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_STAGES_H_
