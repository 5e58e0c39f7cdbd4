// The transport between ranks of one host.
#ifndef PELTON_COMM_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/transport/transport.h"
#include "core/pipeline/operation_kind.h"

namespace pelton {

// Meets the other ranks, which must all be on this host. Registered as "shm". Blocks: until
// options.deadline. Errors: see shm::MeetPeers.
absl::StatusOr<std::unique_ptr<Transport>> MakeShmTransport(const TransportOptions& options);
// The same, and collectives of other kinds than `native_kinds`, the same on all ranks, run as
// programs: for tests.
absl::StatusOr<std::unique_ptr<Transport>> MakeShmTransportOf(KindSet native_kinds,
                                                              const TransportOptions& options);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_SHM_SHM_TRANSPORT_H_
