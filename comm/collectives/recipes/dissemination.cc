// Barrier by dissemination: in wave k every rank signals the rank 2^k further and waits for the
// one 2^k before, after which it knows of 2^(k+1) ranks. Steps: ceil(log2 n). Bytes: 0.
// Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.
#include "comm/collectives/recipe.h"

namespace pelton {
namespace {

size_t Write(const ProgramShape& shape, SegmentBuilder& segment) {
  size_t wave = 0;
  for (int32_t step = 1; step < shape.world_size; step *= 2) {
    const int32_t to = (shape.rank + step) % shape.world_size;
    const int32_t from = (shape.rank + shape.world_size - step) % shape.world_size;
    segment.Signal(wave, to, Transfer::Direction::kSend);
    segment.Signal(wave, from, Transfer::Direction::kRecv);
    ++wave;
  }
  return wave;
}

REGISTER_RECIPE(
    dissemination, "barrier: ceil(log2 n) steps, 0 bytes",
    {.sums_in_rank_order = true,
     .rounds_once = true,
     .supports = [](const ProgramShape& shape) { return shape.kind == OperationKind::kBarrier; },
     .make = [](const ProgramShape& shape) { return WholeProgram(shape, Write); }});

}  // namespace
}  // namespace pelton
