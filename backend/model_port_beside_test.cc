// What a model's port does beside its trainer: rounds by a timer, and the end of those whose peer
// has left. Runs with ranks as threads in process and, as backend/link:model_port_beside_link_test,
// with a daemon for each rank; these threads, and a backend's session, are not under a simulation.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/model_port.h"
#include "backend/test_port_ranks.h"
#include "backend/test_port_worlds.h"
#include "backend/test_ranks.h"
#include "backend/test_tensors.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

TEST(ModelPortBesideTest, AsynchronousAveragingKeepsTheSumOfWhatRanksLearn) {
  uint64_t rounds = 0;
  const std::vector<Tensors> averaged =
      RunWorld(2, {"async_model_average", {{"sync_interval_ms", "0"}}},
               [&](ModelPort& port, Tensors& tensors, int32_t rank) {
                 RETURN_IF_ERROR(TrainFor(50)(port, tensors, rank));
                 RETURN_IF_ERROR(port.Stop(absl::Seconds(30)));
                 if (rank == 0) rounds = port.statistics().rounds;
                 return absl::OkStatus();
               });
  EXPECT_GE(rounds, 1);
  std::vector<Tensors> alone(2, Initial());
  for (uint64_t step = 1; step <= 50; ++step) {
    for (int32_t rank = 0; rank < 2; ++rank) Train(alone[rank], rank, step);
  }
  for (size_t slot = 0; slot < 2; ++slot) {
    for (size_t i = 0; i < kCounts[slot]; ++i) {
      // After the last, agreed round nobody has trained on.
      ASSERT_NEAR(averaged[0][slot][i], averaged[1][slot][i], 1e-4);
      ASSERT_NEAR(averaged[0][slot][i] + averaged[1][slot][i],
                  alone[0][slot][i] + alone[1][slot][i], 1e-3);
    }
  }
}

TEST(ModelPortBesideTest, AsynchronousPairsKeepTheSumOfWhatRanksLearn) {
  std::vector<uint64_t> rounds(3);
  const std::vector<Tensors> averaged = RunWorld(
      3, {"asynchronous_pairs", {{"sync_interval_ms", "0"}}},
      [&](ModelPort& port, Tensors& tensors, int32_t rank) {
        uint64_t& seen = rounds[static_cast<size_t>(rank)];
        // Each rank takes its own time, and nobody another one's.
        const absl::Time give_up = Soon();
        for (int step = 0; step < 50 || (seen < 20 && Clock::Real().Now() < give_up); ++step) {
          RETURN_IF_ERROR(TrainFor(step < 50 ? 1 : 0)(port, tensors, rank));
          seen = port.statistics().rounds;
          std::this_thread::yield();
        }
        EXPECT_GE(seen, 20) << "rank " << rank;
        return port.Stop(absl::Seconds(30));
      });
  std::vector<Tensors> alone(3, Initial());
  for (int32_t rank = 0; rank < 3; ++rank) {
    for (int step = 1; step <= 50; ++step) Train(alone[rank], rank, 1);
  }
  for (size_t slot = 0; slot < 2; ++slot) {
    for (size_t i = 0; i < kCounts[slot]; ++i) {
      double sum = 0;
      for (const Tensors& rank : averaged) sum += rank[slot][i];
      for (const Tensors& rank : alone) sum -= rank[slot][i];
      ASSERT_NEAR(sum, 0, 1e-3) << "tensor " << slot << ", element " << i;
    }
  }
}

TEST(ModelPortBesideTest, ARankThatLeavesInGoodOrderEndsTheOthersRoundByName) {
  RunPortRanks(2, [](PortRank& rank) -> absl::Status {
    PlainTensors tensors(Initial());
    ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port,
                     MakePort(rank, {"local_sgd", {{"interval", "1"}}}, tensors));
    RETURN_IF_ERROR(port->Post(Event(EventKind::kAfterStep)));
    if (rank.rank == Rank(1)) return absl::OkStatus();
    const absl::Time start = Clock::Real().Now();
    const absl::Status left = port->Post(Event(EventKind::kAfterStep));
    EXPECT_LT(Clock::Real().Now() - start, absl::Seconds(20)) << "its deadline is after 30 s";
    EXPECT_THAT(std::string(left.message()), HasSubstr("rank 1"));
    EXPECT_THAT(std::string(left.message()), HasSubstr("its script ended"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace pelton
