// A world of ranks in one process, for tests, over any wire.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_TEST_RANKS_H_
#define PELTON_COMM_TRANSPORT_NETWORK_TEST_RANKS_H_

#include <memory>
#include <vector>

#include "comm/transport/transport.h"

namespace pelton::network {

// The transports of a new world on loopback, by rank; each may be used by a thread of its own.
std::vector<std::unique_ptr<Transport>> MakeRanks(WorldSize world_size, TransportFactory factory);

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_TEST_RANKS_H_
