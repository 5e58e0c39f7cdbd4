// Conformance of windows: made over any communicator of ranks on one host, then without it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/conformance/test_world.h"
#include "comm/window/create_window.h"
#include "comm/window/peer_processes.h"
#include "comm/window/window.h"

namespace pelton::conformance {
namespace {

// A ring to the right.
WindowOptions RingOf(const Communicator& communicator, std::vector<double>& tensor) {
  const int32_t size = communicator.world_size().value();
  const int32_t rank = communicator.rank().value();
  WindowOptions options;
  options.name = "ring";
  options.tensor = {tensor.data(), tensor.size(), DType::kFloat64};
  options.shape = {static_cast<int64_t>(tensor.size())};
  if (size > 1) {
    options.sources = {Rank((rank + size - 1) % size)};
    options.destinations = {Rank((rank + 1) % size)};
  }
  options.zero_init = true;
  return options;
}

std::shared_ptr<const PeerProcesses> Met(Communicator& communicator) {
  auto met = PeerProcesses::Meet(communicator, FarDeadline());
  EXPECT_TRUE(met.ok()) << met.status();
  return met.ok() ? *met : nullptr;
}

void AwaitAll(Communicator& communicator) {
  const absl::StatusOr<Completion> barrier = Barrier(communicator);
  ASSERT_TRUE(barrier.ok()) << barrier.status();
  EXPECT_EQ(Await(communicator, *barrier, FarDeadline()), absl::OkStatus());
}

// Ones go round; every other time the ranks collect at once, so that all interleavings happen.
void SendAround(Communicator& communicator, int rounds) {
  std::vector<double> tensor(1000, 0);
  const std::vector<double> ones(1000, 1);
  const auto processes = Met(communicator);
  ASSERT_NE(processes, nullptr);
  auto window = CreateWindow(communicator, processes, RingOf(communicator, tensor), FarDeadline());
  ASSERT_TRUE(window.ok()) << window.status();
  std::vector<Neighbor> to;
  std::vector<Neighbor> from;
  for (const Rank rank : (*window)->options().destinations) to.push_back({rank, 2});
  for (const Rank rank : (*window)->options().sources) from.push_back({rank, 1});
  std::vector<double> source = ones;
  for (int round = 0; round < rounds; ++round) {
    const WindowAccess access{
        .with_p = true, .with_mutex = round % 3 == 0, .deadline = FarDeadline()};
    ASSERT_EQ((*window)->Accumulate({source.data(), source.size(), DType::kFloat64}, to, 1, access),
              absl::OkStatus());
    if (round % 2 == 0) continue;
    ASSERT_EQ((*window)->UpdateFromSlots({.sources = from, .resets = true}, access),
              absl::OkStatus());
  }
  AwaitAll(communicator);
  ASSERT_EQ((*window)->UpdateFromSlots({.sources = from, .resets = true}, {}), absl::OkStatus());
  const double expected = from.empty() ? 0 : 2 * rounds;
  for (const double element : tensor) ASSERT_EQ(element, expected);
  AwaitAll(communicator);  // before anybody's memory goes
}

TEST_P(TransportConformanceTest, WindowsMadeOverItKeepTheMass) {
  for (const int32_t size : {1, 2, 4}) {
    TestWorld world(GetParam(), size);
    world.Run([](Communicator& communicator) { SendAround(communicator, 50); });
  }
}

TEST_P(TransportConformanceTest, WindowsThatDifferAreAnErrorOnEveryRank) {
  TestWorld world(GetParam(), 3);
  world.Run([](Communicator& communicator) {
    const auto processes = Met(communicator);
    ASSERT_NE(processes, nullptr);
    std::vector<double> tensor(communicator.rank() == Rank(2) ? 5 : 4);
    const auto window =
        CreateWindow(communicator, processes, RingOf(communicator, tensor), FarDeadline());
    EXPECT_EQ(window.status().code(), absl::StatusCode::kInvalidArgument) << window.status();
    EXPECT_EQ(window.status().message(),
              "window 'ring': the tensor is [4] of float64 on rank 0 and [5] of float64 on rank 2");
  });
  world.ExpectUsable();
}

}  // namespace
}  // namespace pelton::conformance
