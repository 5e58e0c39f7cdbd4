// A world of one rank: the target is this rank's own source. Steps: 0. Bytes: 0.
#include "comm/collectives/recipe.h"

namespace pelton {
namespace {

size_t Write(const ProgramShape& shape, SegmentBuilder& segment) {
  if (TraitsOf(shape.kind).source == TensorLength::kNone) return 0;
  if (Reduces(shape.kind)) {
    // One source is reduced, too: a bool becomes 0 or 1.
    segment.Reduce(0, LocalStep::Kind::kReduceLast, {segment.Source()}, segment.Target());
  } else {
    segment.Copy(0, segment.Source(), segment.Target());
  }
  return 1;
}

REGISTER_RECIPE(alone, "a world of one rank; every kind: 0 steps, 0 bytes",
                {.sums_in_rank_order = true,
                 .rounds_once = true,
                 .supports = [](const ProgramShape& shape) { return shape.world_size == 1; },
                 .make = [](const ProgramShape& shape) { return WholeProgram(shape, Write); }});

}  // namespace
}  // namespace pelton
