// A transport for ranks on different hosts, over any kind of wire.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_NETWORK_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_NETWORK_NETWORK_TRANSPORT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/transport.h"

namespace pelton::network {

// Connects the ranks of the job over `network`. Its communicators send and receive;
// comm/collectives makes collectives of that. An `id` whose Open failed must not be opened again at
// the same generation. Blocks: until all ranks have called, or the deadline. Errors:
// DeadlineExceeded; Unauthenticated: names a rank that does not hold the job's token.
absl::StatusOr<std::unique_ptr<Transport>> MakeNetworkTransport(const TransportOptions& options,
                                                                std::unique_ptr<Network> network);

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_NETWORK_TRANSPORT_H_
