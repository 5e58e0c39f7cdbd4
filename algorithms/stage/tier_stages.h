// What a hierarchical pipeline does inside a host, before and after the leaders' exchange.
#ifndef PELTON_ALGORITHMS_STAGE_TIER_STAGES_H_
#define PELTON_ALGORITHMS_STAGE_TIER_STAGES_H_

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "comm/communicator.h"
#include "comm/reduction/reduction.h"
#include "core/pipeline/pipeline.h"

namespace pelton {

// What error feedback has held back, where nothing is encoded: alone, or on one host.

// Threads: a value. Owns: nothing; the name is a literal.
struct HeldBack {
  absl::string_view name;
  StateScope scope = StateScope::kOwn;
};

// Prepare: adds `factor` times what it keeps to the bucket, and keeps zeros from then on; what is
// common it only keeps, for a larger group that may go on from it. It has something to add
// only where a group of another size, whose messages lacked it, has left its state to this one
// (core/round/model_state.h). `name` and `buffers` are those of the stage that encodes in larger
// groups. Every rank keeps all of it, so that what comes of a sum over several needs their shares.
std::unique_ptr<Stage> MakeDeliverStage(absl::string_view name, std::vector<HeldBack> buffers,
                                        double factor = 1);

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
