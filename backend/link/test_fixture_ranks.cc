#include "backend/test_fixture_ranks.h"

#include <cstddef>
#include <thread>

#include "backend/link/test_daemons.h"

namespace pelton {

std::vector<absl::Status> RunFixtureRanks(
    int world_size, const std::function<absl::Status(const BackendOptions&)>& body) {
  const TestDaemons daemons(world_size);
  std::vector<absl::Status> results(static_cast<size_t>(world_size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back(
        [&, rank] { results[static_cast<size_t>(rank)] = body(daemons.TrainerOptions(rank)); });
  }
  for (std::thread& rank : ranks) rank.join();
  return results;
}

}  // namespace pelton
