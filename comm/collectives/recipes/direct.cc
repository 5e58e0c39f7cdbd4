// Allreduce of small tensors in one step: every rank sends all it has to every other and reduces
// what it got. Sums in rank order, rounds once.
// Steps: 1. Bytes a rank sends: (n - 1) S, for a tensor of S bytes.
#include "comm/collectives/recipe.h"

namespace pelton {
namespace {

size_t Write(const ProgramShape& shape, SegmentBuilder& segment) {
  const int32_t n = shape.world_size;
  std::vector<Piece> sources(static_cast<size_t>(n), segment.Source());
  for (int32_t step = 1; step < n; ++step) {
    const int32_t from = (shape.rank + n - step) % n;
    Piece& received = sources[static_cast<size_t>(from)];
    received = segment.Scratch(segment.count());
    segment.Send(0, (shape.rank + step) % n, segment.Source());
    segment.Recv(0, from, received);
  }
  segment.Reduce(0, LocalStep::Kind::kReduceLast, std::move(sources), segment.Target());
  return 1;
}

REGISTER_RECIPE(
    direct, "allreduce: 1 step, (n - 1) S bytes",
    {.sums_in_rank_order = true,
     .rounds_once = true,
     .supports = [](const ProgramShape& shape) { return shape.kind == OperationKind::kAllReduce; },
     .make = [](const ProgramShape& shape) { return WholeProgram(shape, Write); }});

}  // namespace
}  // namespace pelton
