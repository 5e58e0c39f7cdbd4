// Whole backends, one per rank, in one process: a coordinator over gRPC, shared memory, models.
#include "backend/backend.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/model.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "a-token-of-sixteen-bytes-or-more";

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(20); }

// Runs `body` as every rank of a world, each on a thread, and gives back what each returned.
std::vector<absl::Status> RunRanks(int world_size,
                                   const std::function<absl::Status(const BackendOptions&)>& body) {
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

absl::Status SumOnce(Backend& backend, float mine, float* sum) {
  absl::StatusOr<std::unique_ptr<Communicator>> communicator =
      backend.Open(Group::World(backend.world_size()));
  RETURN_IF_ERROR(communicator.status());
  const Tensor tensor{&mine, 1, DType::kFloat32};
  ASSIGN_OR_RETURN(const Completion done,
                   AllReduce(**communicator, tensor, tensor, ReduceOp::kSum));
  RETURN_IF_ERROR(Await(**communicator, done, Soon()));
  *sum = mine;
  return absl::OkStatus();
}

TEST(BackendTest, RanksMeetReduceAndPart) {
  const std::vector<absl::Status> results = RunRanks(3, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    float sum = 0;
    RETURN_IF_ERROR(SumOnce(*backend, 1.0f + options.rank.value(), &sum));
    if (sum != 6.0f) return absl::InternalError(absl::StrCat("sum is ", sum));
    if (backend->host_ranks().size() != 3)
      return absl::InternalError("not all ranks share the host");
    return backend->Stop(Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(BackendTest, SharedMemoryIsReachedBeforeAndAfterACommunicatorOpens) {
  const std::vector<absl::Status> results = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Region> early, Region::Create(1 << 20, "early"));
    ASSIGN_OR_RETURN(std::unique_ptr<Region> late, Region::Create(1 << 20, "late"));
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    backend->Share(*early);
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     backend->Open(Group::World(backend->world_size())));
    backend->Watch(communicator.get());
    backend->Share(*late);
    for (Region* region : {early.get(), late.get()}) {
      auto* values = reinterpret_cast<int32_t*>(region->data());
      const Tensor tensor{values, 1 << 18, DType::kInt32};
      values[100000] = 1 + options.rank.value();
      ASSIGN_OR_RETURN(const Completion done,
                       AllReduce(*communicator, tensor, tensor, ReduceOp::kSum));
      RETURN_IF_ERROR(Await(*communicator, done, Soon()));
      if (values[100000] != 3) return absl::InternalError(absl::StrCat("sum is ", values[100000]));
    }
    backend->Unwatch(communicator.get());
    return absl::OkStatus();
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(BackendTest, ABackendCanBeStartedAgainInOneProcess) {
  for (int round = 0; round < 2; ++round) {
    const std::vector<absl::Status> results = RunRanks(1, [](const BackendOptions& options) {
      ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
      float sum = 0;
      RETURN_IF_ERROR(SumOnce(*backend, 5.0f, &sum));
      return sum == 5.0f ? backend->Stop(Soon()) : absl::InternalError("wrong sum");
    });
    EXPECT_TRUE(results[0].ok()) << results[0];
  }
}

TEST(BackendTest, AMissingRankIsNamed) {
  const std::vector<absl::Status> results = RunRanks(1, [](BackendOptions options) {
    options.world_size = WorldSize(3);
    options.rank = Rank(1);
    options.join_timeout = absl::Milliseconds(300);
    return Backend::Start(options).status();
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("missing: 0, 2"));
}

TEST(BackendTest, ARankThatLeavesEarlyEndsTheOthersWait) {
  const std::vector<absl::Status> results = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    if (options.rank == Rank(1)) return backend->Stop(Soon());
    float sum = 0;
    return SumOnce(*backend, 1, &sum);
  });
  EXPECT_TRUE(results[1].ok()) << results[1];
  EXPECT_FALSE(results[0].ok());
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("1"));
}

TEST(BackendTest, RefusesARankOutsideTheWorld) {
  BackendOptions options;
  options.rank = Rank(4);
  options.world_size = WorldSize(4);
  const absl::Status status = Backend::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank: 4"));
}

std::vector<TensorSpec> Specs(int32_t odd_count) {
  return {{.name = "a", .count = 1000}, {.name = "b", .count = static_cast<uint64_t>(odd_count)}};
}

absl::Status TrainOneRound(Backend& backend, std::vector<TensorSpec> specs) {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(backend.world_size());
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Create(backend, options, std::move(specs)));
  ModelRounds& rounds = model->rounds();
  for (int32_t slot = 0; slot < 2; ++slot) {
    auto* data = reinterpret_cast<float*>(rounds.DataOf(SlotId(slot)));
    data[0] = 1.0f + backend.rank().value() + 10 * slot;
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
  }
  RETURN_IF_ERROR(rounds.EndRound());
  RETURN_IF_ERROR(rounds.WaitRound(Soon()));
  const float mean = *reinterpret_cast<float*>(rounds.ResultOf(SlotId(1)).data);
  return mean == 11.5f ? absl::OkStatus() : absl::InternalError(absl::StrCat("mean is ", mean));
}

TEST(ModelTest, ARoundAveragesOverTheRanks) {
  const std::vector<absl::Status> results = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    return TrainOneRound(*backend, Specs(77));
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(ModelTest, APlanThatDiffersIsAnErrorOnEveryRankThatNamesTheTensor) {
  const std::vector<absl::Status> results = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    return TrainOneRound(*backend, Specs(77 + options.rank.value()));
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("b"));
  }
}

}  // namespace
}  // namespace pelton
