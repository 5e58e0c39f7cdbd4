// A model's options, and what it takes from its backend.
#include "backend/model.h"

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "backend/test_ranks.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

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
    absl::Status round;
    if (options.rank == Rank(0)) {
      RETURN_IF_ERROR(model->rounds().MarkReady(SlotId(0)));
      RETURN_IF_ERROR(model->rounds().EndRound());
      round = model->rounds().WaitRound(Clock::Real().Now() + absl::Seconds(60));
    }
    RETURN_IF_ERROR(Barrier(backend->control(), "end", Clock::Real().Now() + absl::Seconds(80)));
    return round;
  });
  EXPECT_TRUE(results[1].ok()) << results[1];
  return results[0];
}

TEST(ModelOptionsTest, AnOperationMayTakeAsLongAsTheBackendsUnlessTheModelSaysOtherwise) {
  for (const absl::Duration timeout : {absl::ZeroDuration(), absl::Seconds(2)}) {
    const absl::Time began = Clock::Real().Now();
    const absl::Status round = RoundAlone(timeout);
    EXPECT_EQ(round.code(), absl::StatusCode::kDeadlineExceeded) << round;
    EXPECT_LT(Clock::Real().Now() - began, absl::Seconds(40)) << timeout;
  }
}

}  // namespace
}  // namespace pelton
