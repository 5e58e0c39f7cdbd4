#include "backend/pair_wires.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/link/attach.h"
#include "backend/wire.h"
#include "comm/control/control.h"
#include "comm/group.h"
#include "core/base/fork.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// The backend's own wires have taken the usual keys. Threads: one at a time. Owns: nothing.
class PairsBootstrap final : public Bootstrap {
 public:
  explicit PairsBootstrap(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& key,
                                                     const std::string& value,
                                                     absl::Time deadline) override {
    return bootstrap_.AllGather(absl::StrCat("pairs/", key), value, deadline);
  }

 private:
  Bootstrap& bootstrap_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PairWires>> PairWires::Connect(Backend& backend,
                                                              absl::Time deadline) {
  RETURN_IF_ERROR(CheckNotForkedChild());
  if (IsLinkAddress(backend.options().coordinator_address)) {
    return absl::UnimplementedError(
        absl::StrCat("rank ", backend.rank().value(), ": windows between hosts need wires of the ",
                     "rank's own, and this one's are a daemon's; start the ranks without one"));
  }
  PairsBootstrap bootstrap(backend.control());
  TransportOptions options;
  options.rank = backend.rank();
  options.world_size = backend.world_size();
  options.job_token = backend.options().token;
  options.bootstrap = &bootstrap;
  options.deadline = deadline;
  options.interface = backend.options().interface;
  ASSIGN_OR_RETURN(
      std::unique_ptr<Transport> transport,
      ConnectWire(backend.options().wire, backend.options().coordinator_address, options));
  return std::unique_ptr<PairWires>(new PairWires(backend, std::move(transport)));
}

absl::StatusOr<std::unique_ptr<Communicator>> PairWires::Open(Rank peer, uint32_t attempt,
                                                              absl::Time deadline) {
  RETURN_IF_ERROR(CheckNotForkedChild());
  RETURN_IF_ERROR(backend_.failure());
  const Rank mine = backend_.rank();
  const WorldSize world_size = backend_.world_size();
  const Group pair{{std::min(mine, peer), std::max(mine, peer)}, Generation(attempt + 1)};
  RETURN_IF_ERROR(CheckGroup(pair, world_size, mine));
  // A number that no other pair has.
  const auto id =
      static_cast<uint32_t>(pair.members[0].value() * world_size.value() + pair.members[1].value());
  return transport_->Open(CommunicatorId(id), pair, deadline);
}

}  // namespace pelton
