#include "backend/backend.h"
#include "backend/link/test_linked_ranks.h"
#include "backend/test_ranks.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {

void RunLinkedRanks(const LinkedWorld& world,
                    const std::function<absl::Status(LinkedRank& rank)>& body) {
  const auto ended = RunRanks(world.world_size, [&](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ModelOptions model = world.model;
    model.group = Group::World(backend->world_size());
    ASSIGN_OR_RETURN(std::unique_ptr<LinkedPair> pair,
                     LinkedPair::Create(*backend, model, world.tensors));
    const auto meet = [&backend](const std::string& name) {
      return Barrier(backend->control(), name, Soon());
    };
    LinkedRank rank{options.rank, *pair, model,
                    [&] { return Model::Create(*backend, model, world.tensors); }, meet};
    RETURN_IF_ERROR(body(rank));
    return world.job_fails ? absl::OkStatus() : meet("end");
  });
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace pelton
