// Makes the sim transport available by name, for ranks that are threads of one process.
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/sharing.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// The fabrics that ranks of this process share, by job: the last transport of a job takes its
// fabric with it. Part of the registration, and like the registry global, because the ranks have
// nothing else in common.
LiveTable<std::string, SimFabric>& Worlds() {
  static auto* const worlds = new LiveTable<std::string, SimFabric>;  // outlives every rank
  return *worlds;
}

absl::StatusOr<std::shared_ptr<SimFabric>> JoinWorld(const std::string& job, WorldSize world_size) {
  ASSIGN_OR_RETURN(std::shared_ptr<SimFabric> fabric,
                   Worlds().FindOrMake(job, [&]() -> absl::StatusOr<std::shared_ptr<SimFabric>> {
                     return std::make_shared<SimFabric>(world_size);
                   }));
  if (fabric->world_size() == world_size) return fabric;
  return absl::InvalidArgumentError(absl::StrCat("world_size: ", world_size.value(),
                                                 ", but the job's other ranks have ",
                                                 fabric->world_size().value()));
}

// Threads: as Transport. Owns: its share of the fabric.
class JoinedSimTransport final : public Transport {
 public:
  JoinedSimTransport(std::shared_ptr<SimFabric> fabric, Rank rank)
      : fabric_(std::move(fabric)), transport_(*fabric_, rank) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    return transport_.Open(id, group, deadline);
  }
  void Abort(const absl::Status& reason) override { transport_.Abort(reason); }

 private:
  const std::shared_ptr<SimFabric> fabric_;
  SimTransport transport_;
};

absl::StatusOr<std::unique_ptr<Transport>> MakeSimTransport(const TransportOptions& options) {
  const int32_t n = options.world_size.value();
  if (n < 1 || options.rank.value() < 0 || options.rank.value() >= n) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: ", options.rank.value(), " is not in [0, ", n, ")"));
  }
  absl::StatusOr<std::shared_ptr<SimFabric>> fabric =
      JoinWorld(options.job_token, options.world_size);
  if (!fabric.ok()) return fabric.status();
  return std::make_unique<JoinedSimTransport>(*std::move(fabric), options.rank);
}

REGISTER_TRANSPORT(sim, "ranks that are threads of one process", MakeSimTransport);

}  // namespace
}  // namespace pelton
