// Allreduce of small tensors: in step k partners at distance 2^k swap what they have and both add,
// the lower block of ranks on the left, so that all ranks add in the same way: neighbours first,
// then pairs of neighbours, and so on. Ranks beyond a power of two are folded.
// Steps: log2 p, 2 more with folded ranks. Bytes a rank sends: S log2 p, S more by a rank that has
// one folded into it; p = largest power of two that is at most n.
// Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
// MPICH", 2005.
#include "comm/collectives/recipe.h"

namespace pelton {
namespace {

size_t Write(const ProgramShape& shape, SegmentBuilder& segment) {
  const Fold fold(shape);
  const size_t last_wave = fold.first_wave() + fold.steps();
  const size_t waves = last_wave + fold.first_wave();
  if (fold.is_guest()) {
    segment.Send(0, fold.partner(), segment.Source());
    segment.Recv(last_wave, fold.partner(), segment.Target());
    return waves;
  }
  const Piece received = segment.Scratch(segment.count());
  Piece sum = segment.Source();
  if (fold.is_host()) {
    segment.Recv(0, fold.partner(), received);
    segment.Reduce(0, LocalStep::Kind::kReduce, {sum, received}, segment.Target());
    sum = segment.Target();
  }
  for (size_t step = 0; step < fold.steps(); ++step) {
    const int32_t distance = int32_t{1} << step;
    const int32_t peer = fold.FirstRankOf(fold.place() ^ distance);
    const size_t wave = fold.first_wave() + step;
    const bool is_last = step + 1 == fold.steps();
    segment.Send(wave, peer, sum);
    segment.Recv(wave, peer, received);
    std::vector<Piece> sources = {sum, received};
    if (peer < shape.rank) std::swap(sources[0], sources[1]);
    segment.Reduce(wave, is_last ? LocalStep::Kind::kReduceLast : LocalStep::Kind::kReduce,
                   std::move(sources), segment.Target());
    sum = segment.Target();
  }
  if (fold.is_host()) segment.Send(last_wave, fold.partner(), segment.Target());
  return waves;
}

REGISTER_RECIPE(recursive_doubling,
                "allreduce: log2 p steps, 2 more unless n = p; S log2 p bytes, S more by some",
                {.supports =
                     [](const ProgramShape& shape) {
                       return shape.world_size > 1 && shape.kind == OperationKind::kAllReduce;
                     },
                 .make = [](const ProgramShape& shape) { return WholeProgram(shape, Write); }});

}  // namespace
}  // namespace pelton
