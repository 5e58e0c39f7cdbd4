// Whole backends, one per rank, in one process: a coordinator over gRPC, shared memory, models.
#include "backend/backend.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "backend/model.h"
#include "backend/test_ranks.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/control/test_certificates.h"
#include "comm/graph/graph_sequence.h"
#include "comm/neighbors.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "core/pipeline/weight_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<float> SumOver(Communicator& communicator, float mine) {
  const Tensor tensor{&mine, 1, DType::kFloat32};
  ASSIGN_OR_RETURN(const Completion done, AllReduce(communicator, tensor, tensor, ReduceOp::kSum));
  RETURN_IF_ERROR(Await(communicator, done, Soon()));
  return mine;
}

absl::Status SumOnce(Backend& backend, float mine, float* sum) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                   backend.Open(Group::World(backend.world_size())));
  ASSIGN_OR_RETURN(*sum, SumOver(*communicator, mine));
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

// The certificate has the name by which the others reach the coordinator, and no address.
TEST(BackendTest, TheRankThatServesTheCoordinatorKnowsItByItsName) {
  const TestAuthority authority("authority");
  BackendOptions options;
  options.token = kToken;
  options.coordinator_address = "localhost:0";
  options.serves_coordinator = true;
  options.join_timeout = absl::Seconds(5);
  options.tls = authority.Issue("rank", absl::Now() + absl::Hours(1), "DNS:localhost");
  EXPECT_TRUE(Backend::Start(options).ok());
}

TEST(BackendTest, CommunicatorsAverageBetweenNeighboursBesideCollectives) {
  const std::vector<absl::Status> results = RunRanks(3, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     backend->Open(Group::World(backend->world_size())));
    ASSIGN_OR_RETURN(const auto ring, MakeGraphs("ring", WorldSize(3), {{"sides", "right"}}));
    ASSIGN_OR_RETURN(const auto table, WeightTable::Create(ring->At(0).Of(options.rank)));
    const float mine = static_cast<float>(options.rank.value());
    float average = mine;
    const Tensor tensor{&average, 1, DType::kFloat32};
    ASSIGN_OR_RETURN(const Completion done,
                     NeighborAllReduce(*communicator, tensor, tensor, *table));
    ASSIGN_OR_RETURN(const float sum, SumOver(*communicator, mine));
    RETURN_IF_ERROR(Await(*communicator, done, Soon()));
    const float before = static_cast<float>((options.rank.value() + 2) % 3);
    if (average != (mine + before) / 2) return absl::InternalError(absl::StrCat(average));
    return sum == 3 ? absl::OkStatus() : absl::InternalError(absl::StrCat("sum is ", sum));
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
    return absl::OkStatus();
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

// No rank opens the same sequence as another; each adds 10 to the power of its number.
TEST(BackendTest, SubGroupsOpenWhateverTheOtherRanksDo) {
  const std::vector<std::vector<std::vector<int32_t>>> opened = {
      {{0}, {1, 0}, {0, 2}, {0, 2}, {0, 1, 2}}, {{1, 0}, {0, 1, 2}}, {{0, 2}, {0, 2}, {0, 1, 2}}};
  const std::vector<absl::Status> results = RunRanks(3, [&](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    const float powers[] = {1, 10, 100};
    std::vector<std::unique_ptr<Communicator>> communicators;
    for (const auto& ranks : opened[options.rank.value()]) {
      ASSIGN_OR_RETURN(communicators.emplace_back(), backend->Open(Group::Of(ranks)));
      float expected = 0;
      for (int32_t rank : ranks) expected += powers[rank];
      ASSIGN_OR_RETURN(const float sum,
                       SumOver(*communicators.back(), powers[options.rank.value()]));
      if (sum != expected) return absl::InternalError(absl::StrCat("sum is ", sum));
    }
    // Who is done need not wait for the others.
    communicators.clear();
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

// Labels stand for hosts: ranks 0, 1 and 2, 3, 4 share memory, and UCX is between them.
BackendOptions OnTwoHosts(BackendOptions options) {
  options.host_label = options.rank < Rank(2) ? "left" : "right";
  return options;
}

TEST(BackendTest, RanksOfTwoHostsReduceOverTheWire) {
  const std::vector<absl::Status> results = RunRanks(5, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(OnTwoHosts(options)));
    const size_t host_size = options.rank < Rank(2) ? 2 : 3;
    if (backend->host_ranks().size() != host_size || !backend->host_warning().empty()) {
      return absl::InternalError("the hosts are not found");
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     backend->Open(Group::World(backend->world_size())));
    std::vector<int32_t> values(1 << 20, 1 << options.rank.value());
    const Tensor tensor{values.data(), values.size(), DType::kInt32};
    ASSIGN_OR_RETURN(const Completion done,
                     AllReduce(*communicator, tensor, tensor, ReduceOp::kSum));
    RETURN_IF_ERROR(Await(*communicator, done, Soon()));
    for (const int32_t value : values) {
      if (value != 31) return absl::InternalError(absl::StrCat("sum is ", value));
    }
    // One rank on each host, and a host alone.
    const bool is_first = options.rank == Rank(1) || options.rank == Rank(4);
    if (is_first || options.rank == Rank(2) || options.rank == Rank(3)) {
      ASSIGN_OR_RETURN(std::unique_ptr<Communicator> pair,
                       backend->Open(is_first ? Group::Of({4, 1}) : Group::Of({2, 3})));
      ASSIGN_OR_RETURN(const float sum, SumOver(*pair, 2));
      if (sum != 4) return absl::InternalError(absl::StrCat("sum is ", sum));
    }
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(BackendTest, ALostRankEndsTheWaitsOnAllHosts) {
  const std::vector<absl::Status> results = RunRanks(4, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(OnTwoHosts(options)));
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     backend->Open(Group::World(backend->world_size())));
    if (options.rank == Rank(3)) {
      backend->Report(absl::DataLossError("the disk is full"));
    }
    absl::Status status;  // rank 3 goes on until it hears of itself
    while (status.ok()) status = SumOver(*communicator, 1).status();
    return status;
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(std::string(results[rank].message()), HasSubstr("the disk is full"));
  }
}

TEST(BackendTest, SeveralHostsWithoutAWireAreAnErrorThatSaysSo) {
  const std::vector<absl::Status> results = RunRanks(2, [](BackendOptions options) {
    options.host_label = absl::StrCat(options.rank.value());
    options.wire = "pigeons";
    return Backend::Start(options).status();
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no wire between hosts: 'pigeons'"));
  }
}

TEST(BackendTest, RanksWithAnotherTableOfSchedulesAreNamed) {
  const std::vector<absl::Status> results = RunRanks(3, [](BackendOptions options) {
    options.host_label = absl::StrCat(options.rank.value());
    options.schedules = options.rank == Rank(1) ? "allreduce 0 0 ring" : "";
    return Backend::Start(options).status();
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the table of rank 1 is not that of rank 0"));
  }
}

// The sums of 1e8, 1 and -1e8 over three ranks, which tell in which order they were added.
absl::StatusOr<std::vector<float>> CancellingSums(Communicator& communicator) {
  const float terms[] = {1e8F, 1, -1e8F};
  std::vector<float> values(3, terms[communicator.rank().value()]);
  const Tensor tensor{values.data(), values.size(), DType::kFloat32};
  ASSIGN_OR_RETURN(const Completion done, AllReduce(communicator, tensor, tensor, ReduceOp::kSum));
  RETURN_IF_ERROR(Await(communicator, done, Soon()));
  return values;
}

TEST(BackendTest, AGivenTableOfSchedulesIsUsed) {
  const std::vector<absl::Status> results = RunRanks(3, [](BackendOptions options) {
    options.host_label = absl::StrCat(options.rank.value());
    options.schedules = "allreduce 0 0 pigeons";
    const absl::Status refused = Backend::Start(options).status();
    if (refused.code() != absl::StatusCode::kInvalidArgument) return refused;
    options.job = "again";
    options.schedules = "allreduce 0 0 ring";
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     backend->Open(Group::World(backend->world_size())));
    // In rank order, as the built-in table has it, each sum is 0; a ring begins each elsewhere.
    ASSIGN_OR_RETURN(const std::vector<float> sums, CancellingSums(*communicator));
    if (sums == std::vector<float>(3, 0)) return absl::InternalError("that was no ring");
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(BackendTest, ACommunicatorsOwnSchedulesGoBeforeTheJobs) {
  const std::vector<absl::Status> results = RunRanks(3, [](BackendOptions options) {
    options.host_label = absl::StrCat(options.rank.value());
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    const Group world = Group::World(backend->world_size());
    for (const char* rows : {"", "allreduce 0 0 ring", ""}) {
      ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                       backend->Open(world, Device{}, rows));
      ASSIGN_OR_RETURN(const std::vector<float> sums, CancellingSums(*communicator));
      const bool is_in_rank_order = sums == std::vector<float>(3, 0);
      if (is_in_rank_order != (rows[0] == '\0')) {
        return absl::InternalError(absl::StrCat("another schedule than '", rows, "' says"));
      }
    }
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(BackendTest, MembersThatOpenWithOtherSchedulesAreNamed) {
  const std::vector<absl::Status> results = RunRanks(3, [](BackendOptions options) {
    options.host_label = absl::StrCat(options.rank.value());
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    const Group world = Group::World(backend->world_size());
    const std::string rows = options.rank == Rank(1) ? "allreduce 0 0 ring" : "";
    const absl::Status differs = backend->Open(world, Device{}, rows).status();
    EXPECT_EQ(differs.code(), absl::StatusCode::kInvalidArgument) << differs;
    EXPECT_THAT(std::string(differs.message()),
                HasSubstr("the rows of rank 1 are not those of rank 0"));
    const absl::Status no_row = backend->Open(world, Device{}, "allreduce 0 0 pigeons").status();
    EXPECT_EQ(no_row.code(), absl::StatusCode::kInvalidArgument) << no_row;
    EXPECT_THAT(std::string(no_row.message()), HasSubstr("pigeons"));
    RETURN_IF_ERROR(backend->Open(world).status());
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(BackendTest, AGroupCanBeOpenedAndDestroyedAgainAndAgain) {
  const std::vector<absl::Status> results = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    for (int round = 0; round < 300; ++round) {
      float sum = 0;
      RETURN_IF_ERROR(SumOnce(*backend, 1, &sum));
      if (sum != 2) return absl::InternalError(absl::StrCat("sum is ", sum));
    }
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(BackendTest, AMemberThatDoesNotOpenIsNamed) {
  const std::vector<absl::Status> results = RunRanks(3, [](BackendOptions options) {
    options.join_timeout = absl::Seconds(2);
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    absl::Status opened;
    if (options.rank == Rank(0)) opened = backend->Open(Group::Of({2, 0})).status();
    RETURN_IF_ERROR(Barrier(backend->control(), "end", Soon()));
    return opened;
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("opening a communicator"));
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("missing: 2"));
  EXPECT_TRUE(results[1].ok()) << results[1];
  EXPECT_TRUE(results[2].ok()) << results[2];
}

TEST(BackendTest, RefusesAGroupWithoutThisRank) {
  const std::vector<absl::Status> results = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    const absl::Status other = backend->Open(Group::Of({1 - options.rank.value()})).status();
    RETURN_IF_ERROR(Barrier(backend->control(), "end", Soon()));
    return other;
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not one of its members"));
  }
}

// Rank 2 is in no group with those who wait, but its loss is the job's.
TEST(BackendTest, ALostRankEndsTheWaitsOfGroupsWithoutIt) {
  const std::vector<absl::Status> results = RunRanks(3, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    if (options.rank == Rank(2)) {
      backend->Report(absl::DataLossError("the disk is full"));
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, backend->Open(Group::Of({0, 1})));
    if (options.rank == Rank(0)) return SumOver(*communicator, 1).status();
    while (backend->failure().ok()) {
      communicator->Park(Clock::Real().Now() + absl::Milliseconds(20));
    }
    return absl::OkStatus();
  });
  EXPECT_FALSE(results[0].ok());
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("the disk is full"));
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

// What rank 0 gets for a sum of which rank 1, which has stopped and whose backend lives on, does
// not take its part. A gradient that a user holds keeps the model's memory, and the backend with
// it.
absl::Status WaitForOneThatStopped(bool on_two_hosts) {
  absl::Notification is_over;
  const std::vector<absl::Status> results = RunRanks(2, [&](BackendOptions options) {
    if (on_two_hosts) options.host_label = absl::StrCat(options.rank.value());
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> world,
                     backend->Open(Group::World(backend->world_size())));
    if (options.rank == Rank(0)) {
      const absl::Status waited = SumOver(*world, 1).status();
      is_over.Notify();
      return waited;
    }
    RETURN_IF_ERROR(backend->Stop(Soon()));
    is_over.WaitForNotificationWithDeadline(Soon());
    return absl::OkStatus();
  });
  EXPECT_TRUE(results[1].ok()) << results[1];
  return results[0];
}

TEST(BackendTest, ARankThatStopsSaysGoodbyeAlsoIfItsBackendLivesOn) {
  const std::string inside(WaitForOneThatStopped(/*on_two_hosts=*/false).message());
  EXPECT_THAT(inside, HasSubstr("rank 1 (pid"));
  EXPECT_THAT(inside, HasSubstr("has left"));
  EXPECT_THAT(std::string(WaitForOneThatStopped(/*on_two_hosts=*/true).message()),
              HasSubstr("rank 1 has left"));
}

TEST(BackendTest, ARankThatLeavesEndsOnlyTheGroupsItIsIn) {
  const std::vector<absl::Status> results = RunRanks(3, [&](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    const bool leaves = options.rank == Rank(2);
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> world,
                     backend->Open(Group::World(backend->world_size())));
    std::unique_ptr<Communicator> pair;
    if (!leaves) {
      ASSIGN_OR_RETURN(pair, backend->Open(Group::Of({0, 1})));
    }
    if (leaves) {
      world.reset();
      RETURN_IF_ERROR(backend->Stop(Soon()));
      return absl::OkStatus();
    }
    // Ends when the rank that left has been given up.
    const absl::Status waited = SumOver(*world, 1).status();
    if (waited.ok()) return absl::InternalError("a sum without rank 2");
    if (!absl::StrContains(waited.message(), "rank 2 ")) return waited;
    ASSIGN_OR_RETURN(const float sum, SumOver(*pair, 1));
    if (sum != 2) return absl::InternalError(absl::StrCat("sum is ", sum));
    RETURN_IF_ERROR(backend->failure());
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> later, backend->Open(Group::Of({1, 0})));
    RETURN_IF_ERROR(SumOver(*later, 1).status());
    const absl::Status refused = backend->Open(Group::World(backend->world_size())).status();
    if (!absl::StrContains(refused.message(), "rank 2 ")) {
      return absl::InternalError(refused.ToString());
    }
    // Who is done first must not leave before the other one has its sums.
    return SumOver(*pair, 1).status();
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
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

absl::StatusOr<std::unique_ptr<Model>> MakeModel(Backend& backend, const Group& group,
                                                 std::vector<TensorSpec> specs) {
  ModelOptions options;
  options.name = "net";
  options.group = group;
  return Model::Create(backend, options, std::move(specs));
}

// Gives the mean of the members' numbers as the second tensor's first element.
absl::StatusOr<float> MeanOfRanks(Backend& backend, Model& model) {
  ModelRounds& rounds = model.rounds();
  for (int32_t slot = 0; slot < 2; ++slot) {
    auto* data = reinterpret_cast<float*>(rounds.DataOf(SlotId(slot)));
    data[0] = static_cast<float>(backend.rank().value());
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
  }
  RETURN_IF_ERROR(rounds.EndRound());
  RETURN_IF_ERROR(rounds.WaitRound(Soon()));
  return *reinterpret_cast<float*>(rounds.ResultOf(SlotId(1)).data);
}

absl::Status TrainOneRound(Backend& backend, std::vector<TensorSpec> specs) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                   MakeModel(backend, Group::World(backend.world_size()), std::move(specs)));
  ASSIGN_OR_RETURN(const float mean, MeanOfRanks(backend, *model));
  return mean == 0.5f ? absl::OkStatus() : absl::InternalError(absl::StrCat("mean is ", mean));
}

TEST(ModelTest, ARoundAveragesOverTheRanks) {
  const std::vector<absl::Status> results = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    return TrainOneRound(*backend, Specs(77));
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

// All are named alike; rank 1 trains two at a time.
TEST(ModelTest, ModelsOfOverlappingGroupsTrainSideBySide) {
  const std::vector<absl::Status> results = RunRanks(4, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    std::vector<std::unique_ptr<Model>> models;
    std::vector<float> expected;
    for (const std::vector<int32_t>& ranks :
         {std::vector{0, 1}, std::vector{2, 1}, std::vector{3}}) {
      const Group group = Group::Of(ranks);
      if (!group.RankOf(options.rank)) continue;
      ASSIGN_OR_RETURN(models.emplace_back(), MakeModel(*backend, group, Specs(77)));
      expected.push_back(static_cast<float>(ranks.front() + ranks.back()) / 2);
    }
    for (int round = 0; round < 5; ++round) {
      for (size_t i = 0; i < models.size(); ++i) {
        ASSIGN_OR_RETURN(const float mean, MeanOfRanks(*backend, *models[i]));
        if (mean != expected[i]) return absl::InternalError(absl::StrCat("mean is ", mean));
      }
    }
    models.clear();
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(ModelTest, ARoundOnUnequalHostsAveragesOverTheRanks) {
  const std::vector<absl::Status> results = RunRanks(3, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(OnTwoHosts(options)));
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                     MakeModel(*backend, Group::World(backend->world_size()), Specs(77)));
    for (int round = 0; round < 3; ++round) {
      ASSIGN_OR_RETURN(const float mean, MeanOfRanks(*backend, *model));
      if (mean != 1) return absl::InternalError(absl::StrCat("mean is ", mean));
    }
    model.reset();
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

// Exchanges one number per rank, which begins as the rank's own, for `rounds` rounds; by rank, what
// it is then.
std::vector<float> ExchangeInPairs(int world_size, const AlgorithmOptions& algorithm_options,
                                   int rounds) {
  std::vector<float> numbers(static_cast<size_t>(world_size));
  const auto results = RunRanks(world_size, [&](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(OnTwoHosts(options)));
    ModelOptions model_options;
    model_options.name = "net";
    model_options.group = Group::World(backend->world_size());
    model_options.algorithm = "decentralized";
    model_options.algorithm_options = algorithm_options;
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                     Model::Create(*backend, model_options, {{.name = "number", .count = 1}}));
    auto& number = reinterpret_cast<float&>(*model->rounds().DataOf(SlotId(0)));
    number = static_cast<float>(options.rank.value());
    for (int round = 0; round < rounds; ++round) {
      RETURN_IF_ERROR(model->rounds().MarkReady(SlotId(0)));
      RETURN_IF_ERROR(model->rounds().EndRound());
      RETURN_IF_ERROR(model->rounds().WaitRound(Soon()));
    }
    numbers[static_cast<size_t>(options.rank.value())] = number;
    model.reset();
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  return numbers;
}

TEST(ModelTest, TheCoordinatorChoosesPeers) {
  for (const char* mode : {"random_matching", "latency_aware", "avoid_stragglers"}) {
    float sum = 0;
    for (float number : ExchangeInPairs(3, {{"peer_selection_mode", mode}}, 60)) {
      EXPECT_NEAR(number, 1, 0.01) << mode;
      sum += number;
    }
    EXPECT_NEAR(sum, 3, 1e-4) << mode;
  }
}

TEST(ModelTest, TheCoordinatorChoosesPeersAmongTheHostsLeaders) {
  const AlgorithmOptions options = {{"peer_selection_mode", "random_matching"},
                                    {"hierarchical", "true"}};
  // Two hosts, of 2 and 3 ranks: one exchange gives the mean over all ranks.
  for (float number : ExchangeInPairs(5, options, 1)) EXPECT_EQ(number, 2);
}

TEST(ModelTest, TheLeadersOfHostsThatArriveTogetherArePaired) {
  const AlgorithmOptions options = {{"peer_selection_mode", "avoid_stragglers"},
                                    {"hierarchical", "true"}};
  // Two hosts that meet in one of the rounds, and hold the same from then on.
  for (float number : ExchangeInPairs(5, options, 20)) EXPECT_EQ(number, 2);
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
