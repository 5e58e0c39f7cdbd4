// Ranks with a backend each, as threads of one process.
#ifndef PELTON_BACKEND_TEST_RANKS_H_
#define PELTON_BACKEND_TEST_RANKS_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "core/actor/wait_hook.h"
#include "core/base/check.h"

namespace pelton {

inline constexpr char kToken[] = "a-token-of-sixteen-bytes-or-more";

inline absl::Time Soon() { return WaitClock().Now() + absl::Seconds(20); }

// Runs `body` as every rank of a world, each on a thread, and gives back what each returned.
inline std::vector<absl::Status> RunRanks(
    int world_size, const std::function<absl::Status(const BackendOptions&)>& body) {
  auto coordinator = ServeCoordinatorAt("127.0.0.1:0", kToken);
  PELTON_CHECK_OK(coordinator.status());
  std::vector<absl::Status> results(world_size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      BackendOptions options;
      options.rank = Rank(rank);
      options.world_size = WorldSize(world_size);
      options.token = kToken;
      options.coordinator_address = (*coordinator)->address();
      options.operation_timeout = absl::Seconds(10);
      options.join_timeout = absl::Seconds(10);
      results[rank] = body(options);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return results;
}

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_RANKS_H_
