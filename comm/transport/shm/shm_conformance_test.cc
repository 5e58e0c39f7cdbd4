#include <thread>

#include "absl/time/clock.h"
#include "comm/transport/conformance_test.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_bootstrap.h"
#include "core/base/check.h"

namespace pelton {
namespace {

class ShmFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    shm::MeetingPlace place(world_size.value());
    std::vector<std::unique_ptr<Transport>> transports(world_size.value());
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world_size.value(); ++rank) {
      ranks.emplace_back([&, rank] {
        shm::TestBootstrap bootstrap(place, rank);
        auto transport = MakeShmTransport(
            {Rank(rank), world_size, "token", &bootstrap, absl::Now() + absl::Seconds(60)});
        PELTON_CHECK(transport.ok()) << transport.status();
        transports[rank] = *std::move(transport);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return transports;
  }
};

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<ShmFixture>));

}  // namespace
}  // namespace pelton
