#include "comm/transport/shm/test_transports.h"

#include <thread>

#include "absl/time/time.h"
#include "comm/transport/shm/shm_transport.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton::shm {

std::vector<std::unique_ptr<Transport>> MakeTestTransports(WorldSize world_size,
                                                           KindSet native_kinds,
                                                           const std::vector<Rank>& names) {
  MeetingPlace place(world_size.value());
  std::vector<std::unique_ptr<Transport>> transports(static_cast<size_t>(world_size.value()));
  const absl::Time deadline = Clock::Real().Now() + absl::Seconds(60);
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < world_size.value(); ++rank) {
    ranks.emplace_back([&, rank] {
      TestBootstrap bootstrap(place, rank);
      TransportOptions options{Rank(rank), world_size, "token", &bootstrap, deadline};
      options.names = names;
      auto transport = MakeShmTransportOf(native_kinds, options);
      PELTON_CHECK(transport.ok()) << transport.status();
      transports[static_cast<size_t>(rank)] = *std::move(transport);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return transports;
}

std::vector<std::unique_ptr<Communicator>> OpenWorld(
    const std::vector<std::unique_ptr<Transport>>& transports, CommunicatorId id) {
  const Group world = Group::World(WorldSize(static_cast<int32_t>(transports.size())));
  std::vector<std::unique_ptr<Communicator>> ends(transports.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      auto end = transports[rank]->Open(id, world, Clock::Real().Now() + absl::Seconds(20));
      PELTON_CHECK(end.ok()) << end.status();
      ends[rank] = *std::move(end);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return ends;
}

}  // namespace pelton::shm
