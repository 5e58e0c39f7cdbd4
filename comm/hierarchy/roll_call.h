// All ranks of a group launch the same collective, or all of them learn what differs.
#ifndef PELTON_COMM_HIERARCHY_ROLL_CALL_H_
#define PELTON_COMM_HIERARCHY_ROLL_CALL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/operation_runner.h"

namespace pelton::hierarchy {

// Before a collective begins every rank sends its operation, 64 bytes, to every other one. So a
// difference is found before anything is written, is told in the same words on all ranks and harms
// no later collective; and a rank that waits knows exactly for whom. Costs a latency and
// 2 (n - 1) small messages.
// Threads: one at a time. Owns: the operations exchanged; the runner outlives it.
class RollCall {
 public:
  RollCall(OperationRunner& runner, Rank rank, WorldSize world_size);

  // Begins for the next collective of this rank; the one before is done.
  void Start(const Operation& mine);
  // True once all ranks' operations are there. Blocks: never. Errors: the runner's.
  absl::StatusOr<bool> Advance();
  bool moved() const { return moved_; }
  // InvalidArgument if the ranks' operations differ: the same on all ranks.
  absl::Status Difference() const;
  // Whose operation is waited for.
  std::vector<Rank> Missing() const;

 private:
  absl::Status LaunchRest();
  absl::Status Launch(OperationKind kind, Rank peer, Operation* memory);

  struct Flight {
    Completion completion;
    int32_t sender = kNoPeer;  // of a receive
  };

  OperationRunner& runner_;
  const Rank rank_;
  std::vector<Operation> posts_;  // by rank
  int32_t next_launch_ = 0;       // of twice as many as there are ranks
  std::vector<Flight> in_flight_;
  bool moved_ = false;
};

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_ROLL_CALL_H_
