// The transport for ranks on different hosts without RDMA, and the network of connections under it.
#ifndef PELTON_COMM_TRANSPORT_TCP_TCP_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/transport.h"

namespace pelton::tcp {

// What the rank of `options` needs, on their interface. Errors: NotFound: no such interface;
// ResourceExhausted.
absl::StatusOr<std::unique_ptr<network::Network>> MakeTcpNetwork(const TransportOptions& options);

}  // namespace pelton::tcp

namespace pelton {

// Connects the ranks of the job by TCP over IPv4 on `options.interface`; bytes go between the
// tensors and the kernel without a copy of ours. For the rest: as MakeNetworkTransport
// (comm/transport/network/network_transport.h). Errors: NotFound: no such interface.
absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const TransportOptions& options);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_TCP_TCP_TRANSPORT_H_
