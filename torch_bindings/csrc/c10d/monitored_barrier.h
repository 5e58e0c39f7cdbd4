// A barrier that names the ranks that are missing.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_MONITORED_BARRIER_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_MONITORED_BARRIER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/lane/lane.h"
#include "core/base/moving_deadline.h"
#include "core/base/sync.h"

namespace pelton::torch_bindings {

// Every other rank reports to rank 0 that it is in the barrier, and withdraws that when its time is
// over; rank 0 answers all of them once all are in it at one time. So a barrier that fails leaves
// no message behind that a later barrier could take for its own, even if ranks took part in unequal
// numbers of barriers.
// Threads: any; one call after the other. Owns: what rank 0 knows of the others.
class MonitoredBarrier {
 public:
  struct Terms {
    std::string name;  // for errors
    absl::Duration timeout;
    bool names_all = false;  // who is missing, or only the first of them
  };

  // `standstill`: for how long time-outs do not come nearer; it lives as long as the lane.
  MonitoredBarrier(std::shared_ptr<lane::Lane> lane, const Standstill& standstill, int rank,
                   int size)
      : lane_(std::move(lane)),
        standstill_(standstill),
        rank_(rank),
        waiting_(static_cast<size_t>(size)) {}

  // Blocks: until all ranks are in it, or the timeout. Errors: DeadlineExceeded, in gloo's words:
  // on rank 0 who is missing, elsewhere that rank 0 has not answered; DeadlineExceeded also while a
  // call of another thread goes on; an interrupted wait's.
  absl::Status Pass(const Terms& terms);

 private:
  struct Message {
    int sender = -1;
    int64_t value = 0;
  };

  absl::Status Monitor(const Terms& terms, const MovingDeadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  absl::Status AwaitReports(const MovingDeadline& deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  absl::Status Report(const Terms& terms, const MovingDeadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  std::vector<int> Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_);
  // Whether this call has the turn. Blocks: until then, or `deadline`.
  bool TakeTurn(const MovingDeadline& deadline) ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true, turn_);
  // Whether `job` is done. Blocks: until then, or `deadline`.
  bool Wait(const lane::JobHandle& job, const MovingDeadline& deadline);
  lane::JobHandle Post(const Terms& terms, int peer, int32_t tag, int64_t value);
  // The next message of a tag from any rank; none at `deadline`.
  absl::StatusOr<std::optional<Message>> Next(int32_t tag, const MovingDeadline& deadline);

  const std::shared_ptr<lane::Lane> lane_;  // shared: see Lane::Create
  const Standstill& standstill_;
  const int rank_;
  Turn turn_;  // of the calls
  // On rank 0, by rank: the attempt in which it waits; 0: it does not.
  std::vector<int64_t> waiting_ ABSL_GUARDED_BY(turn_);
  int64_t attempts_ ABSL_GUARDED_BY(turn_) = 0;  // of this rank
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_MONITORED_BARRIER_H_
