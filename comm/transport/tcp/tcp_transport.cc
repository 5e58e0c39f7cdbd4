#include "comm/transport/tcp/tcp_transport.h"

#include <utility>

#include "comm/transport/network/network_transport.h"
#include "comm/transport/tcp/tcp_network.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const TransportOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<network::Network> network, tcp::MakeTcpNetwork(options));
  return network::MakeNetworkTransport(options, std::move(network));
}

REGISTER_TRANSPORT(tcp, "ranks of different hosts, over TCP", MakeTcpTransport);

}  // namespace pelton
