// What a hierarchical pipeline does inside a host, before and after the leaders' exchange.
#ifndef PELTON_ALGORITHMS_STAGE_TIER_STAGES_H_
#define PELTON_ALGORITHMS_STAGE_TIER_STAGES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "comm/communicator.h"
#include "comm/tiers.h"
#include "core/memory/dtype.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"

namespace pelton {

// What error feedback has held back, where nothing is encoded: alone, or on one host. Adds `factor`
// times what it keeps to the bucket, and keeps zeros from then on; what is common it only keeps,
// for a larger group that may go on from it. It has something to add only where a group of another
// size, whose messages lacked it, has left its state to this one (core/round/model_state.h).
// `name`, and the names and scopes in `kept`, are those of the stage that encodes in larger groups.
// Every rank keeps all of it, so that what comes of a sum over several needs their shares.
std::unique_ptr<Stage> MakeDeliverStage(absl::string_view name, const BucketLayout& layout,
                                        std::vector<StateBuffer> kept, double factor = 1);

// Appends the stages of an exchange among ranks that each stand for so many of the group's, those
// of `sizes`, by rank in `ranks`.
using PeerExchange =
    absl::FunctionRef<absl::Status(Communicator& ranks, const std::vector<int32_t>& sizes)>;
// With hosts as the peers: between their leaders, after the sum or the mean (kAvg) of a host's
// ranks onto its leader, in place, segment by segment, and before the leader's segments go to all
// ranks of the host. A sum of 16-bit elements may overflow where the mean does not. Else: among all
// ranks. Steps: a reduce and a broadcast per segment. Bytes: none of them on a wire between hosts.
// Errors: InvalidArgument: no tiers are open; those of `add_exchange`.
absl::Status AddExchangeOfPeers(const Tiers& tiers, bool hosts_are_peers, ReduceOp op,
                                PeerExchange add_exchange, PipelineSpec& spec);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_TIER_STAGES_H_
