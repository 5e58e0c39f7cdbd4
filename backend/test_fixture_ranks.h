// How the ranks of a suite come to their backends: by what the test is linked with.
#ifndef PELTON_BACKEND_TEST_FIXTURE_RANKS_H_
#define PELTON_BACKEND_TEST_FIXTURE_RANKS_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "backend/backend.h"

namespace pelton {

// Runs `body` as every rank of a world, each on a thread, and gives back what each returned. With
// the options that it gets a rank starts a backend in process, or one that attaches to a daemon.
std::vector<absl::Status> RunFixtureRanks(
    int world_size, const std::function<absl::Status(const BackendOptions&)>& body);

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_FIXTURE_RANKS_H_
