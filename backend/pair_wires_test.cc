#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/group_windows.h"
#include "backend/test_ranks.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/control/control.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Rank 1 sends its number to rank 0.
absl::Status SendOver(Communicator& pair, Rank rank) {
  int32_t number = rank.value();
  const Tensor tensor{&number, 1, DType::kInt32};
  ASSIGN_OR_RETURN(const Completion done,
                   rank == Rank(1) ? Send(pair, tensor, Rank(0)) : Recv(pair, tensor, Rank(1)));
  RETURN_IF_ERROR(Await(pair, done, Soon()));
  return number == 1 ? absl::OkStatus() : absl::InternalError(absl::StrCat("got ", number));
}

absl::Status MeetOver(Communicator& world) {
  ASSIGN_OR_RETURN(const Completion met, Barrier(world));
  return Await(world, met, Soon());
}

// The job fails with rank 2; what ranks 0 and 1 have between them goes on.
TEST(PairWiresTest, APairOutlivesTheLossOfAThirdRank) {
  const std::vector<absl::Status> results = RunRanks(3, [](BackendOptions options) {
    options.host_label = absl::StrCat(options.rank.value());
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<PairWires> wires,
                     PairWires::Connect(*backend, Group::World(backend->world_size()), Soon()));
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> world,
                     backend->Open(Group::World(backend->world_size())));
    const bool is_lost = options.rank == Rank(2);
    std::unique_ptr<Communicator> pair;
    for (uint32_t attempt = 0; attempt < 2 && !is_lost; ++attempt) {
      ASSIGN_OR_RETURN(pair, wires->Open(Rank(1 - options.rank.value()), attempt, Soon()));
    }
    RETURN_IF_ERROR(Barrier(backend->control(), "opened", Soon()));
    if (is_lost) backend->Report(absl::DataLossError("the disk is full"));
    for (absl::Status status; status.ok();) status = MeetOver(*world);
    return is_lost ? absl::OkStatus() : SendOver(*pair, options.rank);
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(PairWiresTest, ARankOutsideTheWorldIsRefused) {
  const std::vector<absl::Status> results = RunRanks(2, [](BackendOptions options) {
    options.host_label = absl::StrCat(options.rank.value());
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<PairWires> wires,
                     PairWires::Connect(*backend, Group::World(backend->world_size()), Soon()));
    const absl::Status refused = wires->Open(Rank(2), 0, Soon()).status();
    RETURN_IF_ERROR(Barrier(backend->control(), "end", Soon()));
    return refused;
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

}  // namespace
}  // namespace pelton
