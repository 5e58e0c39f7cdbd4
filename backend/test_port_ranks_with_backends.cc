#include <memory>

#include "backend/backend.h"
#include "backend/test_fixture_ranks.h"
#include "backend/test_port_ranks.h"
#include "backend/test_ranks.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {

void RunPortRanks(int world_size, const std::function<absl::Status(PortRank& rank)>& body,
                  const std::function<void()>& after) {
  const auto ended = RunFixtureRanks(world_size, [&](BackendOptions options) {
    options.operation_timeout = absl::Seconds(30);
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    const auto meet = [&](const std::string& name) {
      return Barrier(backend->control(), name, Soon());
    };
    PortRank rank{options.rank, options.world_size, ModelSource::Of(*backend), meet};
    return body(rank);
  });
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
  after();
}

}  // namespace pelton
