#include "comm/transport/ucx/ucx_transport.h"

#include <utility>
#include <vector>

#include "comm/transport/network/network_transport.h"
#include "comm/transport/ucx/ucx_library.h"
#include "comm/transport/ucx/ucx_worker.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as Network. Owns: the context.
class UcxNetwork final : public network::Network {
 public:
  explicit UcxNetwork(std::unique_ptr<ucx::Context> context) : context_(std::move(context)) {}

  const std::string& interface() const override { return context_->interface(); }
  absl::StatusOr<std::unique_ptr<network::Worker>> MakeWorker(
      network::Receiver& receiver, const std::vector<Rank>& members) override {
    return ucx::UcxWorker::Create(*context_, receiver, static_cast<int>(members.size()));
  }

 private:
  const std::unique_ptr<ucx::Context> context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const TransportOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<ucx::Context> context, ucx::Context::Make(options.interface));
  return network::MakeNetworkTransport(options, std::make_unique<UcxNetwork>(std::move(context)));
}

REGISTER_TRANSPORT(ucx, "ranks of different hosts, over RDMA or TCP", MakeUcxTransport);

}  // namespace pelton
