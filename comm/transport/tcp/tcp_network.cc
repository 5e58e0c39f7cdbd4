#include "comm/transport/tcp/tcp_network.h"

#include <netinet/in.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/transport/network/interface.h"
#include "comm/transport/network/members.h"
#include "comm/transport/tcp/tcp_worker.h"
#include "comm/transport/tcp/trunk.h"
#include "core/base/status.h"

namespace pelton::tcp {
namespace {

// Threads: as Network. Owns: the trunk.
class TcpNetwork final : public network::Network {
 public:
  TcpNetwork(std::string interface, std::unique_ptr<Trunk> trunk)
      : interface_(std::move(interface)), trunk_(std::move(trunk)) {}

  const std::string& interface() const override { return interface_; }
  absl::StatusOr<std::unique_ptr<network::Worker>> MakeWorker(
      network::Receiver& receiver, const std::vector<Rank>& members) override {
    return TcpWorker::Create(*trunk_, receiver, members);
  }

 private:
  const std::string interface_;
  const std::unique_ptr<Trunk> trunk_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<network::Network>> MakeTcpNetwork(const TransportOptions& options) {
  const std::string interface = options.interface.empty() ? "lo" : options.interface;
  ASSIGN_OR_RETURN(const in_addr_t host, network::HostOf(interface));
  ASSIGN_OR_RETURN(std::unique_ptr<Trunk> trunk,
                   Trunk::Create(host, network::Members(options.job_token, kGreetings,
                                                        Group::World(options.world_size),
                                                        options.rank, options.near)));
  return std::make_unique<TcpNetwork>(interface, std::move(trunk));
}

}  // namespace pelton::tcp
