// The control plane of ranks that all live in one process: for simulation and tests.
#ifndef PELTON_COMM_CONTROL_IN_PROCESS_CONTROL_H_
#define PELTON_COMM_CONTROL_IN_PROCESS_CONTROL_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/control/control.h"
#include "core/base/clock.h"
#include "core/base/ids.h"

namespace pelton {

// The same state machine as the gRPC coordinator's, without sockets or threads: orders are
// delivered on the thread that causes them, and time passes when the clock says so. No rank is ever
// silent; a loss is made with Lose. Threads: any. Owns: the state of the jobs; must outlive the
// Controls that it makes.
class InProcessCoordinator {
 public:
  // `clock` must outlive the coordinator.
  static std::unique_ptr<InProcessCoordinator> Make(const Clock& clock);
  virtual ~InProcessCoordinator() = default;

  // A Control that has not joined.
  virtual std::unique_ptr<Control> MakeControl() = 0;
  // All ranks of a world, joined: for callers with one thread, where Join would wait for the others
  // in vain.
  virtual std::vector<std::unique_ptr<Control>> MakeWorld(const std::string& job,
                                                          WorldSize world_size) = 0;
  // What the loss of this rank's process looks like to the others.
  virtual void Lose(const std::string& job, Rank rank) = 0;
  // Applies what the clock's present time makes due; to be called after a virtual clock was moved.
  virtual void Tick() = 0;
  // Ranks that have joined or wait to, over all jobs.
  virtual size_t rank_count() = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_IN_PROCESS_CONTROL_H_
