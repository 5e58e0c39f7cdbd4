// Recursive halving, then recursive doubling: partners swap halves of what is still theirs to
// reduce, until each of p ranks has its part, and then double what they know in the opposite order.
// Ranks beyond a power of two are folded (Fold); p = largest power of two that is at most n.
// For a tensor of S bytes, or chunks of C bytes:
//   allreduce       2 log2 p steps; 2 (p - 1) / p S bytes. Neighbours add first, then pairs of
//                   neighbours, and so on, the lower block of ranks on the left.
//   reduce_scatter  log2 p steps; n / 2 C in the first, half as much in each later one. Ranks at
//                   distance p / 2 add first.
//   allgather       log2 p steps; C in the first, twice as much in each later one
// With folded ranks 2 more steps, and by those that they are folded into: S bytes more, C more for
// reduce_scatter, and at most (2 p + n) C in all for allgather.
// Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
// MPICH", 2005.
#include <utility>

#include "comm/collectives/recipe.h"

namespace pelton {
namespace {

using Kind = LocalStep::Kind;

Kind KindOf(bool is_last) { return is_last ? Kind::kReduceLast : Kind::kReduce; }

// The two addends with that of the lower ranks on the left.
std::vector<Piece> InOrder(bool peer_is_lower, const Piece& mine, const Piece& received) {
  if (peer_is_lower) return {received, mine};
  return {mine, received};
}

Piece Part(Piece whole, Range range) {
  whole.offset += range.begin;
  whole.count = range.count();
  return whole;
}

// Reduces the kept halves into the target; returns what was kept after each step.
std::vector<Range> Halve(const ProgramShape& shape, const Fold& fold, Piece sum,
                         SegmentBuilder& segment) {
  const Piece scratch = segment.Scratch(segment.count() - segment.count() / 2);
  std::vector<Range> kept = {{0, segment.count()}};
  for (size_t step = 0; step < fold.steps(); ++step) {
    const int32_t distance = int32_t{1} << step;
    const int32_t peer = fold.FirstRankOf(fold.place() ^ distance);
    const bool is_lower = peer > shape.rank;
    const Range all = kept.back();
    const uint64_t middle = all.begin + (all.count() + 1) / 2;
    const Range low{all.begin, middle};
    const Range high{middle, all.end};
    const Range mine = is_lower ? low : high;
    const size_t wave = fold.first_wave() + step;
    const Piece received = Part(scratch, {0, mine.count()});
    segment.Send(wave, peer, Part(sum, is_lower ? high : low));
    segment.Recv(wave, peer, received);
    segment.Reduce(wave, KindOf(step + 1 == fold.steps()),
                   InOrder(!is_lower, Part(sum, mine), received), segment.Target(mine));
    kept.push_back(mine);
    sum = segment.Target();
  }
  return kept;
}

size_t WriteAllReduce(const ProgramShape& shape, SegmentBuilder& segment) {
  const Fold fold(shape);
  const size_t last_wave = fold.first_wave() + 2 * fold.steps();
  const size_t waves = last_wave + fold.first_wave();
  if (fold.is_guest()) {
    segment.Send(0, fold.partner(), segment.Source());
    segment.Recv(last_wave, fold.partner(), segment.Target());
    return waves;
  }
  Piece sum = segment.Source();
  if (fold.is_host()) {
    const Piece received = segment.Scratch(segment.count());
    segment.Recv(0, fold.partner(), received);
    segment.Reduce(0, Kind::kReduce, {sum, received}, segment.Target());
    sum = segment.Target();
  }
  const std::vector<Range> kept = Halve(shape, fold, sum, segment);
  for (size_t step = fold.steps(); step-- > 0;) {
    const int32_t peer = fold.FirstRankOf(fold.place() ^ (int32_t{1} << step));
    const Range mine = kept[step + 1];
    const Range all = kept[step];
    const bool is_lower = peer > shape.rank;
    const Range theirs = is_lower ? Range{mine.end, all.end} : Range{all.begin, mine.begin};
    const size_t wave = last_wave - 1 - step;
    segment.Send(wave, peer, segment.Target(mine));
    segment.Recv(wave, peer, segment.Target(theirs));
  }
  if (fold.is_host()) segment.Send(last_wave, fold.partner(), segment.Target());
  return waves;
}

// The chunks of the ranks at `places` places from `first` on, guests included.
Range ChunksOf(const ProgramShape& shape, const Fold& fold, int32_t first, int32_t places) {
  return {static_cast<uint64_t>(fold.FirstRankOf(first)) * shape.count,
          static_cast<uint64_t>(fold.FirstRankOf(first + places)) * shape.count};
}

size_t WriteReduceScatter(const ProgramShape& shape, SegmentBuilder& segment) {
  const Fold fold(shape);
  const size_t last_wave = fold.first_wave() + fold.steps();
  const uint64_t all_count = static_cast<uint64_t>(shape.world_size) * shape.count;
  const Range own{static_cast<uint64_t>(shape.rank) * shape.count,
                  static_cast<uint64_t>(shape.rank + 1) * shape.count};
  if (fold.is_guest()) {
    segment.Send(0, fold.partner(), segment.Source({0, all_count}));
    segment.Recv(last_wave, fold.partner(), segment.Target());
    return last_wave + fold.first_wave();
  }
  const Piece sums = segment.Scratch(all_count);
  const Piece scratch = segment.Scratch(all_count);
  Piece sum = segment.Source({0, all_count});
  if (fold.is_host()) {
    segment.Recv(0, fold.partner(), scratch);
    segment.Reduce(0, Kind::kReduce, {sum, scratch}, sums);
    sum = sums;
  }
  for (size_t step = 0; step < fold.steps(); ++step) {
    const int32_t distance = fold.places() >> (step + 1);
    const int32_t peer_place = fold.place() ^ distance;
    const int32_t peer = fold.FirstRankOf(peer_place);
    const size_t wave = fold.first_wave() + step;
    // Both halves begin at a multiple of their length.
    const Range mine = ChunksOf(shape, fold, fold.place() / distance * distance, distance);
    const Range theirs = ChunksOf(shape, fold, peer_place / distance * distance, distance);
    const Piece received = Part(scratch, {0, mine.count()});
    segment.Send(wave, peer, Part(sum, theirs));
    segment.Recv(wave, peer, received);
    segment.Reduce(wave, KindOf(step + 1 == fold.steps()),
                   InOrder(peer < shape.rank, Part(sum, mine), received), Part(sums, mine));
    sum = sums;
  }
  segment.Copy(last_wave - 1, Part(sums, own), segment.Target());
  if (fold.is_host()) {
    segment.Send(last_wave, fold.partner(), Part(sums, {own.end, own.end + shape.count}));
  }
  return last_wave + fold.first_wave();
}

size_t WriteAllGather(const ProgramShape& shape, SegmentBuilder& segment) {
  const Fold fold(shape);
  const size_t last_wave = fold.first_wave() + fold.steps();
  const Range all{0, static_cast<uint64_t>(shape.world_size) * shape.count};
  const auto own_offset = static_cast<uint64_t>(shape.rank) * shape.count;
  if (fold.is_guest()) {
    segment.Send(0, fold.partner(), segment.Source());
    segment.Recv(last_wave, fold.partner(), segment.Target(all));
    return last_wave + fold.first_wave();
  }
  if (fold.is_host()) {
    segment.Recv(0, fold.partner(), segment.Target(own_offset + shape.count));
    segment.Copy(0, segment.Source(), segment.Target(own_offset));
  }
  Piece known = fold.is_host() ? segment.Target({own_offset, own_offset + 2 * shape.count})
                               : segment.Source();
  for (size_t step = 0; step < fold.steps(); ++step) {
    const int32_t distance = int32_t{1} << step;
    const int32_t peer_place = fold.place() ^ distance;
    const int32_t peer = fold.FirstRankOf(peer_place);
    const size_t wave = fold.first_wave() + step;
    segment.Send(wave, peer, known);
    segment.Recv(wave, peer,
                 segment.Target(ChunksOf(shape, fold, peer_place / distance * distance, distance)));
    if (step == 0 && !fold.is_host()) {
      segment.Copy(wave, segment.Source(), segment.Target(own_offset));
    }
    known = segment.Target(
        ChunksOf(shape, fold, fold.place() / (2 * distance) * (2 * distance), 2 * distance));
  }
  if (fold.is_host()) segment.Send(last_wave, fold.partner(), segment.Target(all));
  return last_wave + fold.first_wave();
}

constexpr Segmentation kCut{
    .strands = 4, .min_segment_bytes = 512 << 10, .max_segment_bytes = 8 << 20};

Program Make(const ProgramShape& shape) {
  switch (shape.kind) {
    case OperationKind::kAllReduce:
      return SegmentedProgram(shape, kCut, WriteAllReduce);
    case OperationKind::kReduceScatter:
      return WholeProgram(shape, WriteReduceScatter);
    default:
      return WholeProgram(shape, WriteAllGather);
  }
}

REGISTER_RECIPE(halving_doubling,
                "allreduce: 2 log2 p steps, 2 (p - 1) / p S bytes; "
                "reduce_scatter, allgather: log2 p steps, (n - 1) C bytes; more unless n = p",
                {.supports =
                     [](const ProgramShape& shape) {
                       return shape.world_size > 1 &&
                              (shape.kind == OperationKind::kAllReduce ||
                               shape.kind == OperationKind::kReduceScatter ||
                               shape.kind == OperationKind::kAllGather);
                     },
                 .make = Make});

}  // namespace
}  // namespace pelton
