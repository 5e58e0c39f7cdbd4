// A world of shm transports whose ranks are threads of one test.
#ifndef PELTON_COMM_TRANSPORT_SHM_TEST_TRANSPORTS_H_
#define PELTON_COMM_TRANSPORT_SHM_TEST_TRANSPORTS_H_

#include <memory>
#include <vector>

#include "comm/transport/shm/plan.h"
#include "comm/transport/transport.h"

namespace pelton::shm {

// By rank. Collectives of other kinds than `native_kinds` run as programs. Blocks: until all have
// met.
std::vector<std::unique_ptr<Transport>> MakeTestTransports(WorldSize world_size,
                                                           KindSet native_kinds = kPlannedKinds);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_TEST_TRANSPORTS_H_
