// What a hierarchical pipeline does inside a host, before and after the leaders' exchange.
#ifndef PELTON_ALGORITHMS_STAGE_TIER_STAGES_H_
#define PELTON_ALGORITHMS_STAGE_TIER_STAGES_H_

#include <memory>

#include "comm/communicator.h"
#include "comm/reduction/reduction.h"
#include "core/pipeline/stage.h"

namespace pelton {

// Exchange: the sum or the mean (kAvg) of the host's ranks onto its leader, in place, segment by
// segment; the others' segments keep what they hold. A sum of 16-bit elements may overflow where
// the mean does not.
// Steps: one reduce per segment. Bytes: those of the host's reduce; none on a wire between hosts.
std::unique_ptr<Stage> MakeReduceToLeaderStage(const Communicator& host, ReduceOp op);

// Merge: the elements of the slots times `factor`, in the host's memory.
std::unique_ptr<Stage> MakeScaleStage(double factor);

// Merge: the leader's segments, to all ranks of the host.
// Steps: one broadcast per segment. Bytes: as above.
std::unique_ptr<Stage> MakeBroadcastFromLeaderStage(const Communicator& host);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_TIER_STAGES_H_
