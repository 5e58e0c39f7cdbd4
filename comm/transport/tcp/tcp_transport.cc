#include "comm/transport/tcp/tcp_transport.h"

#include <string>
#include <utility>

#include "comm/transport/network/interface.h"
#include "comm/transport/network/network_transport.h"
#include "comm/transport/tcp/tcp_worker.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as Network. Owns: nothing.
class TcpNetwork final : public network::Network {
 public:
  TcpNetwork(std::string interface, in_addr_t host)
      : interface_(std::move(interface)), host_(host) {}

  const std::string& interface() const override { return interface_; }
  absl::StatusOr<std::unique_ptr<network::Worker>> MakeWorker(network::Receiver& receiver,
                                                              int peer_count) const override {
    return tcp::TcpWorker::Create(host_, receiver, peer_count);
  }

 private:
  const std::string interface_;
  const in_addr_t host_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const TransportOptions& options) {
  const std::string interface = options.interface.empty() ? "lo" : options.interface;
  ASSIGN_OR_RETURN(const uint32_t host, network::HostOf(interface));
  return network::MakeNetworkTransport(options, std::make_unique<TcpNetwork>(interface, host));
}

REGISTER_TRANSPORT(tcp, "ranks of different hosts, over TCP", MakeTcpTransport);

}  // namespace pelton
