// The network of TCP connections between the ranks of a job.
#ifndef PELTON_COMM_TRANSPORT_TCP_TCP_NETWORK_H_
#define PELTON_COMM_TRANSPORT_TCP_TCP_NETWORK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/transport.h"

namespace pelton::tcp {

// What the rank of `options` needs, on their interface. Errors: NotFound: no such interface;
// ResourceExhausted.
absl::StatusOr<std::unique_ptr<network::Network>> MakeTcpNetwork(const TransportOptions& options);

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_TCP_NETWORK_H_
