#include <utility>

#include "backend/link/test_linked_ranks.h"
#include "backend/link/test_sim_link_world.h"
#include "comm/group.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Of each case; all of them take a few seconds.
constexpr uint64_t kSeeds = 15;

// Trainer and daemon of a rank. Threads: the rank's. Owns: the pair, for the body's duration.
absl::Status RunRank(SimLinkWorld& world, Rank number, const LinkedWorld& settings,
                     const std::function<absl::Status(LinkedRank& rank)>& body) {
  ModelOptions model = settings.model;
  model.group = Group::World(WorldSize(world.world_size()));
  ASSIGN_OR_RETURN(std::unique_ptr<LinkedPair> pair,
                   LinkedPair::Create(world.Serving(number), model, settings.tensors, {}));
  LinkedRank rank{number, *pair, model,
                  [&] { return world.MakeModel(number, model, settings.tensors); },
                  [&](const std::string& name) { return world.Meet(name); }};
  RETURN_IF_ERROR(body(rank));
  return world.Meet("end");  // which no failure of the job ends
}

}  // namespace

void RunLinkedRanks(const LinkedWorld& settings,
                    const std::function<absl::Status(LinkedRank& rank)>& body) {
  ForEachWorld(kSeeds, [&](uint64_t seed) {
    std::vector<SimThreads::Process> processes(static_cast<size_t>(settings.world_size));
    SimLinkWorld world(seed, settings.world_size);
    const absl::Time start = world.executor().Now();
    for (int32_t rank = 0; rank < settings.world_size; ++rank) {
      world.threads().Start(processes[static_cast<size_t>(rank)], [&, rank] {
        const absl::Status status = RunRank(world, Rank(rank), settings, body);
        EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
      });
    }
    EXPECT_TRUE(world.threads().RunUntilAllEnd()) << "a thread waits for what will not come";
    if (settings.is_timeless && world.is_without_latency()) {
      EXPECT_EQ(world.executor().Now(), start)
          << "a wake-up was lost: a park has ended by its time";
    }
  });
}

}  // namespace pelton
