// A world of one rank. Steps: 0. Bytes: 0.
#include "comm/collectives/program_builder.h"

namespace pelton {
namespace {

size_t Write(const ProgramShape& shape, SegmentBuilder& segment) {
  switch (shape.kind) {
    case OperationKind::kBarrier:
    case OperationKind::kBroadcast:
      return 0;
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
    case OperationKind::kReduceScatter:
      // One source is reduced, too: a bool becomes 0 or 1.
      segment.Reduce(0, LocalStep::Kind::kReduceLast, {segment.Source()}, segment.Target());
      return 1;
    default:
      segment.Copy(0, segment.Source(), segment.Target());
      return 1;
  }
}

REGISTER_SCHEDULE(alone, "a world of one rank; every kind: 0 steps, 0 bytes",
                  {.sums_in_rank_order = true,
                   .rounds_once = true,
                   .supports = [](const ProgramShape& shape) { return shape.world_size == 1; },
                   .make = [](const ProgramShape& shape) { return WholeProgram(shape, Write); }});

}  // namespace
}  // namespace pelton
