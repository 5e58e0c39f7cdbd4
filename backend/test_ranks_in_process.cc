#include "backend/test_fixture_ranks.h"
#include "backend/test_ranks.h"

namespace pelton {

std::vector<absl::Status> RunFixtureRanks(
    int world_size, const std::function<absl::Status(const BackendOptions&)>& body) {
  return RunRanks(world_size, body);
}

}  // namespace pelton
