#include "comm/transport/tcp/tcp_network.h"

#include <netinet/in.h>

#include <utility>
#include <vector>

#include "comm/transport/network/interface.h"
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

absl::StatusOr<std::unique_ptr<network::Network>> MakeTcpNetwork(const std::string& interface,
                                                                 const std::string& job_token,
                                                                 Rank rank, WorldSize world_size) {
  ASSIGN_OR_RETURN(const in_addr_t host, network::HostOf(interface));
  ASSIGN_OR_RETURN(std::unique_ptr<Trunk> trunk, Trunk::Create(host, job_token, rank, world_size));
  return std::make_unique<TcpNetwork>(interface, std::move(trunk));
}

}  // namespace pelton::tcp
