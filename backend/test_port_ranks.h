// Worlds whose ranks each make a model's port: by what a test is linked with in process, with
// daemons or under a simulation.
#ifndef PELTON_BACKEND_TEST_PORT_RANKS_H_
#define PELTON_BACKEND_TEST_PORT_RANKS_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "backend/model_port.h"
#include "core/base/ids.h"

namespace pelton {

// One of them. Threads: its own. Owns: its callbacks; of use in the body.
struct PortRank {
  Rank rank;
  WorldSize world_size;
  ModelSource source;
  // Returns when all ranks have called it by this name. Blocks: so long.
  std::function<absl::Status(const std::string& name)> meet;
};

// Runs `body` as every rank of a world, and `after` when all have ended; what the body returns must
// be OK. In a simulation once for each seed, of which a failing one is named.
void RunPortRanks(
    int world_size, const std::function<absl::Status(PortRank& rank)>& body,
    const std::function<void()>& after = [] {});

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_PORT_RANKS_H_
