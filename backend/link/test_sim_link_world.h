// Trainers, daemons and the wires between them, in one thread and virtual time: for tests.
#ifndef PELTON_BACKEND_LINK_TEST_SIM_LINK_WORLD_H_
#define PELTON_BACKEND_LINK_TEST_SIM_LINK_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/link/model_server.h"
#include "backend/model.h"
#include "comm/communicator.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_threads.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"

namespace pelton {

// The seed chooses who runs next wherever a thread waits and after each access to a word of a page,
// how long the wires between the ranks take, and what else the test asks `executor()` for. Code of
// the product all of it, but for the wires and what makes a model without a backend.
// Threads: one, in which those of the simulation run. Owns: executor, fabric, communicators.
class SimLinkWorld {
 public:
  SimLinkWorld(uint64_t seed, int32_t world_size);
  ~SimLinkWorld();
  SimLinkWorld(const SimLinkWorld&) = delete;
  SimLinkWorld& operator=(const SimLinkWorld&) = delete;

  int32_t world_size() const { return world_size_; }
  SimExecutor& executor() { return executor_; }
  SimFabric& fabric() { return fabric_; }
  SimThreads& threads() { return threads_; }
  // Whether the wires of this seed take no time.
  bool is_without_latency() const { return is_without_latency_; }

  // In process, of a rank. The models of all ranks meet in the order of their making.
  absl::StatusOr<std::unique_ptr<Model>> MakeModel(Rank rank, const ModelOptions& options,
                                                   std::vector<TensorSpec> tensors);
  // Of a daemon that makes models so; the socket is left out.
  ModelServerOptions Serving(Rank rank);
  // Blocks: until all ranks have called it by this name, or some seconds. Errors: DeadlineExceeded.
  absl::Status Meet(const std::string& name);

 private:
  static SimOptions Wires(SimExecutor& executor, bool is_without_latency);

  const int32_t world_size_;
  SimExecutor executor_;
  const bool is_without_latency_;
  SimFabric fabric_;
  // By the number of the model, then by rank; null: it is taken.
  std::deque<std::vector<std::unique_ptr<Communicator>>> opened_;
  std::vector<size_t> made_;  // models, by rank
  std::map<std::string, int32_t> met_;
  SimThreads threads_;  // last: what it unwinds uses the others
};

// Calls `test` for `count` seeds, as ForEachSeed does; under a sanitizer for three at most, unless
// one is named, because a world takes tens of milliseconds there.
void ForEachWorld(uint64_t count, absl::FunctionRef<void(uint64_t seed)> test);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TEST_SIM_LINK_WORLD_H_
