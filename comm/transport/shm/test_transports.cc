#include "comm/transport/shm/test_transports.h"

#include <thread>

#include "absl/time/time.h"
#include "comm/transport/shm/shm_transport.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton::shm {

std::vector<std::unique_ptr<Transport>> MakeTestTransports(WorldSize world_size,
                                                           KindSet native_kinds) {
  MeetingPlace place(world_size.value());
  std::vector<std::unique_ptr<Transport>> transports(static_cast<size_t>(world_size.value()));
  const absl::Time deadline = Clock::Real().Now() + absl::Seconds(60);
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < world_size.value(); ++rank) {
    ranks.emplace_back([&, rank] {
      TestBootstrap bootstrap(place, rank);
      auto transport =
          MakeShmTransportOf(native_kinds, {Rank(rank), world_size, "token", &bootstrap, deadline});
      PELTON_CHECK(transport.ok()) << transport.status();
      transports[static_cast<size_t>(rank)] = *std::move(transport);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return transports;
}

}  // namespace pelton::shm
