// A world of UCX transports in one process, for tests.
#ifndef PELTON_COMM_TRANSPORT_UCX_TEST_RANKS_H_
#define PELTON_COMM_TRANSPORT_UCX_TEST_RANKS_H_

#include <memory>
#include <vector>

#include "comm/transport/transport.h"

namespace pelton::ucx {

// The transports of a new world on loopback, by rank; each may be used by a thread of its own.
std::vector<std::unique_ptr<Transport>> MakeRanks(WorldSize world_size);

}  // namespace pelton::ucx

#endif  // PELTON_COMM_TRANSPORT_UCX_TEST_RANKS_H_
