// What error feedback has held back, where nothing is encoded: alone, or on one host.
#ifndef PELTON_ALGORITHMS_STAGE_DELIVER_H_
#define PELTON_ALGORITHMS_STAGE_DELIVER_H_

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/pipeline/stage.h"

namespace pelton {

// Threads: a value. Owns: nothing; the name is a literal.
struct HeldBack {
  absl::string_view name;
  StateScope scope = StateScope::kOwn;
};

// Prepare: adds what it keeps to the bucket, and keeps zeros from then on; what is common it only
// keeps, for a larger group that may go on from it. It has something to add
// only where a group of another size, whose messages lacked it, has left its state to this one
// (core/round/reshard.h). `name` and `buffers` are those of the stage that encodes in larger
// groups.
std::unique_ptr<Stage> MakeDeliverStage(absl::string_view name, std::vector<HeldBack> buffers);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_DELIVER_H_
