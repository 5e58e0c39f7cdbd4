#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/link/test_links.h"
#include "backend/link/test_sim_link_world.h"
#include "backend/test_port_ranks.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Of each case; all of them take a few seconds.
constexpr uint64_t kSeeds = 10;

// Trainer and daemon of a rank. Threads: the rank's. Owns: the daemon's part of its models.
absl::Status RunRank(SimLinkWorld& world, Rank number,
                     const std::function<absl::Status(PortRank& rank)>& body) {
  std::vector<std::unique_ptr<LinkedPair>> pairs;
  PortRank rank;
  rank.rank = number;
  rank.world_size = WorldSize(world.world_size());
  rank.source.make =
      [&](const ModelOptions& options, std::unique_ptr<Algorithm>,
          std::vector<TensorSpec> tensors) -> absl::StatusOr<std::unique_ptr<Model>> {
    ASSIGN_OR_RETURN(std::unique_ptr<LinkedPair> pair,
                     LinkedPair::Create(world.Serving(number), options, std::move(tensors), {}));
    pairs.push_back(std::move(pair));
    return pairs.back()->TakeModel();
  };
  rank.source.failure = [] { return absl::OkStatus(); };
  rank.meet = [&](const std::string& name) { return world.Meet(name); };
  return body(rank);
}

}  // namespace

void RunPortRanks(int world_size, const std::function<absl::Status(PortRank& rank)>& body,
                  const std::function<void()>& after) {
  ForEachWorld(kSeeds, [&](uint64_t seed) {
    std::vector<SimThreads::Process> processes(static_cast<size_t>(world_size));
    SimLinkWorld world(seed, world_size);
    for (int32_t rank = 0; rank < world_size; ++rank) {
      world.threads().Start(processes[static_cast<size_t>(rank)], [&, rank] {
        const absl::Status status = RunRank(world, Rank(rank), body);
        EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
      });
    }
    EXPECT_TRUE(world.threads().RunUntilAllEnd()) << "a thread waits for what will not come";
    after();
  });
}

}  // namespace pelton
