#include "comm/transport/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <poll.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/control/bind_address.h"
#include "comm/group.h"
#include "comm/transport/network/network_transport.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/tcp/tcp_worker.h"
#include "comm/transport/tcp/trunk.h"
#include "core/base/status.h"
#include "core/base/sync.h"
#include "core/base/threads.h"

namespace pelton::tcp {
namespace {

// How long the sockets that wait for room are looked at before it is asked whether this has ended.
constexpr int kLookMs = 100;

// Threads: as Network. Owns: the trunk, and a thread for what closed communicators have left
// behind: an abort or a goodbye must reach a peer that was busy, though nobody drives them any
// more.
class TcpNetwork final : public network::Network {
 public:
  TcpNetwork(std::string interface, std::unique_ptr<Trunk> trunk)
      : interface_(std::move(interface)), trunk_(std::move(trunk)) {
    trunk_->set_on_orphans([this] {
      // Once is enough while it runs: it looks at all of them.
      orphans_.Add([this] { WriteOrphans(); });
    });
  }
  ~TcpNetwork() override {
    MutexLock lock(&mutex());
    is_ending_ = true;
  }

  const std::string& interface() const override { return interface_; }
  absl::StatusOr<std::unique_ptr<network::Worker>> MakeWorker(
      network::Receiver& receiver, const std::vector<Rank>& members) override {
    return TcpWorker::Create(*trunk_, receiver, members);
  }

 private:
  void WriteOrphans() {
    while (true) {
      std::vector<pollfd> waiting;
      {
        MutexLock lock(&mutex());
        if (is_ending_) return;
        for (const int socket : trunk_->WriteOrphans()) waiting.push_back({socket, POLLOUT, 0});
      }
      if (waiting.empty()) return;
      poll(waiting.data(), waiting.size(), kLookMs);  // a socket that closes meanwhile wakes it
    }
  }

  const std::string interface_;
  const std::unique_ptr<Trunk> trunk_;
  bool is_ending_ ABSL_GUARDED_BY(mutex()) = false;
  CallThread orphans_{"tcp orphans", /*most_waiting=*/2};  // ends before the trunk does
};

}  // namespace

absl::StatusOr<std::unique_ptr<network::Network>> MakeTcpNetwork(const TransportOptions& options) {
  const std::string interface = options.interface.empty() ? "lo" : options.interface;
  ASSIGN_OR_RETURN(const in_addr_t host, ResolveIpv4(interface));
  ASSIGN_OR_RETURN(std::unique_ptr<Trunk> trunk,
                   Trunk::Create(host, network::Members(options.job_token, kGreetings,
                                                        Group::World(options.world_size),
                                                        options.rank, options.near)));
  return std::make_unique<TcpNetwork>(interface, std::move(trunk));
}

}  // namespace pelton::tcp

namespace pelton {

absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(const TransportOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<network::Network> network, tcp::MakeTcpNetwork(options));
  return network::MakeNetworkTransport(options, std::move(network));
}

REGISTER_TRANSPORT(tcp, "ranks of different hosts, over TCP", MakeTcpTransport);

}  // namespace pelton
