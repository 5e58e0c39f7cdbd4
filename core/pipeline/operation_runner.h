// What the pipelines know of communication: something that runs operations in order. comm/
// implements it.
#ifndef PELTON_CORE_PIPELINE_OPERATION_RUNNER_H_
#define PELTON_CORE_PIPELINE_OPERATION_RUNNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/memory/stream.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Names one launched operation of one runner; a value that costs nothing to copy or to drop.
struct Completion {
  uint64_t ticket = 0;  // number among the runner's launches, from 1
};

// Runs operations. Collectives run one after the other in launch order, which is the same on all
// ranks (ORDER-1); point-to-point operations are ordered per peer and direction only and never wait
// for collectives. Threads: Wake and Abort by any, all else by one thread at a time, which drives.
// So a runner's state needs no lock: it notes an abort, and the driving thread finds the note.
// Owns: the state of the operations in flight, never their memory.
class OperationRunner {
 public:
  virtual ~OperationRunner() = default;

  // Queues `operation` behind the earlier ones and starts it if it is their turn. Its memory
  // belongs to the runner until Query says it is done (OWN-1). Blocks: never. Errors:
  // InvalidArgument: a field is out of range, named with its value; ResourceExhausted:
  // limits::kMaxOperationsInFlight reached; the reason of an earlier Abort.
  virtual absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) = 0;

  // Advances what is in flight by a bounded amount of work; true if anything moved. Blocks: never.
  virtual bool Progress() = 0;

  // OK: done; Unavailable is never returned for "not yet", see `done`. A failed operation is done,
  // with the reason: InvalidArgument when the ranks' operations differ (the runner stays usable),
  // else that of the Abort.
  struct State {
    bool done = false;
    absl::Status status;
  };
  // Every launch can be asked for, at any time; see completion_table.h for very old failures.
  // Blocks: never.
  virtual State Query(Completion completion) = 0;

  // Done once `stream` comes after the operation: what is put there later finds its result. On a
  // device that is soon after Launch; elsewhere, and on the host's stream, when the operation is
  // done. Blocks: never. Errors: as Query, as far as they are known.
  virtual State Follow(Completion completion, Stream& stream) { return Query(completion); }

  // Sleeps until a peer may have moved something, Wake is called, or `until`. Blocks: until then.
  virtual void Park(absl::Time until) = 0;
  // Ends a Park, also one that is about to begin.
  virtual void Wake() = 0;

  // Every operation in flight and every later one fails with `reason` on this rank, and the peers
  // are told. The first reason stays. Blocks: never.
  virtual void Abort(const absl::Status& reason) = 0;
  // Ranks that have not launched the oldest operation that this rank has in flight, or whose part
  // in it this rank waits for.
  virtual std::vector<Rank> Missing() const = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_OPERATION_RUNNER_H_
