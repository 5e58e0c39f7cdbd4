// Hosts that are joined by sends and receives alone, or by several wires: what a rank learns from
// them while its device works, and how much they take at once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/hierarchy/hierarchical_transport.h"
#include "comm/neighbors.h"
#include "comm/transport/nccl/gpu_world.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"

namespace pelton {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kSystemError = 2;  // ncclSystemError

absl::Time FarDeadline() { return Clock::Real().Now() + absl::Seconds(60); }

// Threads: one. Owns: the wires inside the hosts.
class Hosts {
 public:
  // By rank; the ranks of a host follow each other.
  explicit Hosts(std::vector<int32_t> host_of) : host_of_(std::move(host_of)) {
    for (int32_t host = 0; host <= host_of_.back(); ++host) {
      const auto size = std::count(host_of_.begin(), host_of_.end(), host);
      inside_.push_back(std::make_unique<SimFabric>(WorldSize(static_cast<int32_t>(size))));
    }
  }

  WorldSize world_size() const { return WorldSize(static_cast<int32_t>(host_of_.size())); }
  std::unique_ptr<Transport> Join(std::unique_ptr<Transport> between, Rank rank) {
    const int32_t host = host_of_[static_cast<size_t>(rank.value())];
    const auto first = std::find(host_of_.begin(), host_of_.end(), host) - host_of_.begin();
    HierarchyOptions options;
    options.rank = rank;
    options.host_of = host_of_;
    options.inside = inside_[static_cast<size_t>(host)]->MakeTransport(
        Rank(rank.value() - static_cast<int32_t>(first)));
    options.between = std::move(between);
    return MakeHierarchicalTransport(std::move(options));
  }

 private:
  const std::vector<int32_t> host_of_;
  std::vector<std::unique_ptr<SimFabric>> inside_;
};

class NcclHostsTest : public testing::TestWithParam<std::vector<int32_t>> {
 protected:
  NcclHostsTest() : stand_in_(stand_in::StandIn::Get()), hosts_(GetParam()) {
    options_.nccl_path = options_.cudart_path = options_.kernels_path = stand_in::LibraryPath();
  }
  // Whatever happened in a test, nothing stays behind.
  ~NcclHostsTest() override {
    stand_in_.reset();
    EXPECT_EQ(stand_in_.open_count(), 0);
  }

  void Run(absl::FunctionRef<void(Communicator&)> body) {
    GpuWorld world(hosts_.world_size(), options_, /*one_device_each=*/true,
                   [this](auto wire, Rank rank) { return hosts_.Join(std::move(wire), rank); });
    world.Run(body);
  }

  const stand_in::StandIn& stand_in_;
  Hosts hosts_;
  NcclOptions options_;
};

// It fails when the posts are done and the devices of all others have the operation.
TEST_P(NcclHostsTest, ARankHearsOfAPeersFailureWhileItsDeviceWorks) {
  options_.agree_first = true;
  stand_in_.fail("ncclAllReduce", /*skip=*/2 * hosts_.world_size().value() - 1, kSystemError);
  Run([](Communicator& communicator) {
    for (const bool goes_well : {true, false}) {
      float value = 1;
      const Tensor tensor{&value, 1, DType::kFloat32};
      const auto sum = AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
      ASSERT_TRUE(sum.ok()) << sum.status();
      const absl::Status status = Await(communicator, *sum, FarDeadline());
      EXPECT_EQ(status.ok(), goes_well) << status;
      if (goes_well) continue;
      EXPECT_THAT(std::string(status.message()), HasSubstr("ncclAllReduce"));
    }
  });
}

// The records of their edges are more than recipes leave room for.
TEST_P(NcclHostsTest, PostsOfAveragesThatAPeerBeginsLateFindRoom) {
  std::latch launched(1);
  Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    if (rank > 1) return;
    const Rank other(1 - rank);
    const auto table = WeightTable::Create(
        {.own = 0.5, .sources = {{other, 0.5}}, .destinations = {{other, 0.5}}}, {});
    ASSERT_TRUE(table.ok()) << table.status();
    std::vector<float> values(60, static_cast<float>(2 * rank));
    std::vector<Completion> averages;
    if (rank == 1) launched.wait();
    for (float& value : values) {
      const Tensor tensor{&value, 1, DType::kFloat32};
      const auto average = NeighborAllReduce(communicator, tensor, tensor, **table);
      ASSERT_TRUE(average.ok()) << average.status();
      averages.push_back(*average);
    }
    if (rank == 0) launched.count_down();
    for (const Completion average : averages) {
      ASSERT_EQ(Await(communicator, average, FarDeadline()), absl::OkStatus());
    }
    EXPECT_THAT(values, Each(1));
  });
}

INSTANTIATE_TEST_SUITE_P(OneRankEach, NcclHostsTest,
                         testing::Values(std::vector<int32_t>{0, 1, 2}));
INSTANTIATE_TEST_SUITE_P(TwoRanksEach, NcclHostsTest,
                         testing::Values(std::vector<int32_t>{0, 0, 1, 1}));

}  // namespace
}  // namespace pelton
