#include "comm/transport/network/test_ranks.h"

#include <thread>

#include "absl/time/clock.h"
#include "comm/transport/shm/test_transports.h"
#include "core/base/check.h"

namespace pelton::network {

std::vector<std::unique_ptr<Transport>> MakeRanks(WorldSize world_size, TransportFactory factory) {
  const auto count = static_cast<size_t>(world_size.value());
  shm::MeetingPlace place(world_size.value());
  std::vector<std::unique_ptr<Transport>> transports(count);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < count; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto number = static_cast<int32_t>(rank);
      shm::TestBootstrap bootstrap(place, number);
      TransportOptions options;
      options.rank = Rank(number);
      options.world_size = world_size;
      options.job_token = "token";
      options.bootstrap = &bootstrap;
      options.deadline = absl::Now() + absl::Seconds(60);
      auto transport = factory(options);
      PELTON_CHECK(transport.ok()) << transport.status();
      transports[rank] = *std::move(transport);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return transports;
}

}  // namespace pelton::network
