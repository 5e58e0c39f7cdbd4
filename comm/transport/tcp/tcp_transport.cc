#include "comm/transport/tcp/tcp_transport.h"

#include <string>
#include <utility>
#include <vector>

#include "comm/transport/network/interface.h"
#include "comm/transport/network/network_transport.h"
#include "comm/transport/tcp/tcp_network.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const TransportOptions& options) {
  const std::string interface = options.interface.empty() ? "lo" : options.interface;
  ASSIGN_OR_RETURN(std::unique_ptr<network::Network> network,
                   tcp::MakeTcpNetwork(interface, options.job_token, options.rank,
                                       options.world_size));
  return network::MakeNetworkTransport(options, std::move(network));
}

REGISTER_TRANSPORT(tcp, "ranks of different hosts, over TCP", MakeTcpTransport);

}  // namespace pelton
