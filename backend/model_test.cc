// A model's options, and what it takes from its backend.
#include "backend/model.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "backend/test_ranks.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// A round of rank 0 that rank 1 takes no part in, with `timeout` for the model's operations; what
// it ends with.
absl::Status RoundAlone(absl::Duration timeout) {
  const std::vector<absl::Status> results = RunRanks(2, [&](BackendOptions options) {
    options.operation_timeout = absl::Seconds(1);
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ModelOptions model_options;
    model_options.name = "net";
    model_options.group = Group::World(backend->world_size());
    model_options.timeout = timeout;
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                     Model::Create(*backend, model_options, {{.name = "a", .count = 1000}}));
    if (options.rank == Rank(1)) {
      // Until the job fails, of which rank 0 tells.
      return Barrier(backend->control(), "end", Clock::Real().Now() + absl::Seconds(80));
    }
    RETURN_IF_ERROR(model->rounds().MarkReady(SlotId(0)));
    RETURN_IF_ERROR(model->rounds().EndRound());
    return model->rounds().WaitRound(Clock::Real().Now() + absl::Seconds(60));
  });
  return results[0];
}

TEST(ModelOptionsTest, AnOperationMayTakeAsLongAsTheBackendsUnlessTheModelSaysOtherwise) {
  for (const absl::Duration timeout : {absl::ZeroDuration(), absl::Seconds(2)}) {
    const absl::Time began = Clock::Real().Now();
    const absl::Status round = RoundAlone(timeout);
    EXPECT_THAT(std::string(round.message()), HasSubstr("is not done in time"));
    EXPECT_LT(Clock::Real().Now() - began, absl::Seconds(40)) << timeout;
  }
}

}  // namespace
}  // namespace pelton
