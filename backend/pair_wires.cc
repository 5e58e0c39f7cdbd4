#include "backend/pair_wires.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/group_bootstrap.h"
#include "backend/link/attach.h"
#include "backend/wire.h"
#include "core/base/fork.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<PairWires>> PairWires::Connect(Backend& backend, const Group& group,
                                                              absl::Time deadline) {
  RETURN_IF_ERROR(CheckNotForkedChild());
  RETURN_IF_ERROR(CheckGroup(group, backend.world_size(), backend.rank()));
  if (IsLinkAddress(backend.options().coordinator_address)) {
    return absl::UnimplementedError(
        absl::StrCat("rank ", backend.rank().value(), ": windows between hosts need wires of the ",
                     "rank's own, and this one's are a daemon's; start the ranks without one"));
  }
  // The backend's own wires have taken the keys without a prefix.
  GroupBootstrap bootstrap(backend.control(), group.members, "pairs/");
  const auto place = std::find(group.members.begin(), group.members.end(), backend.rank());
  TransportOptions options;
  options.rank = Rank(static_cast<int32_t>(place - group.members.begin()));
  options.world_size = group.size();
  options.job_token = backend.options().token;
  options.bootstrap = &bootstrap;
  options.deadline = deadline;
  options.interface = backend.options().interface;
  ASSIGN_OR_RETURN(
      std::unique_ptr<Transport> transport,
      ConnectWire(backend.options().wire, backend.options().coordinator_address, options));
  return std::unique_ptr<PairWires>(
      new PairWires(backend, options.rank, options.world_size, std::move(transport)));
}

absl::StatusOr<std::unique_ptr<Communicator>> PairWires::Open(Rank peer, uint32_t attempt,
                                                              absl::Time deadline) {
  RETURN_IF_ERROR(CheckNotForkedChild());
  RETURN_IF_ERROR(backend_.failure());
  const Group pair{{std::min(rank_, peer), std::max(rank_, peer)}, Generation(attempt + 1)};
  RETURN_IF_ERROR(CheckGroup(pair, group_size_, rank_));
  // A number that no other pair has.
  const auto id = static_cast<uint32_t>(pair.members[0].value() * group_size_.value() +
                                        pair.members[1].value());
  return transport_->Open(CommunicatorId(id), pair, deadline);
}

}  // namespace pelton
