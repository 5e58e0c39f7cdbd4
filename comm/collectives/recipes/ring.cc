// Every rank talks to its two neighbours only. The tensor is n chunks; in each step each rank sends
// one to the next rank, which adds its own and passes it on. Chunk j is summed in the order
// j + 1, j + 2, ..., j (mod n), by one rank, which then sends it around.
// For a tensor of S bytes, or chunks of C bytes:
//   allreduce       2 (n - 1) steps, 2 (n - 1) / n S bytes
//   reduce_scatter  n - 1 steps, (n - 1) C bytes
//   allgather       n - 1 steps, (n - 1) C bytes
// Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// 2009.
#include "comm/collectives/recipe.h"

namespace pelton {
namespace {

constexpr Segmentation kCut{
    .strands = 4, .min_segment_bytes = 512 << 10, .max_segment_bytes = 8 << 20};

// Threads: a value. Owns: nothing.
struct Neighbors {
  explicit Neighbors(const ProgramShape& shape)
      : n(shape.world_size), rank(shape.rank), next((rank + 1) % n), previous((rank + n - 1) % n) {}

  // The rank `steps` before this one, at most n of them.
  int32_t Before(int32_t steps) const { return (rank + n - steps) % n; }

  int32_t n;
  int32_t rank;
  int32_t next;
  int32_t previous;
};

// `source(j)` is this rank's part of chunk j; that of its own chunk ends up in `target`.
template <typename SourceOf>
void ReduceAround(const Neighbors& ring, SegmentBuilder& segment, SourceOf source,
                  uint64_t longest_count, const Piece& target) {
  // What comes in lies in one half while the other half leaves.
  const Piece halves[] = {segment.Scratch(longest_count), segment.Scratch(longest_count)};
  Piece partial = source(ring.Before(1));
  for (int32_t step = 0; step < ring.n - 1; ++step) {
    const auto wave = static_cast<size_t>(step);
    const bool is_last = step == ring.n - 2;
    const Piece own = source(ring.Before(step + 2));
    Piece received = halves[step % 2];
    received.count = own.count;
    segment.Send(wave, ring.next, partial);
    segment.Recv(wave, ring.previous, received);
    segment.Reduce(wave, is_last ? LocalStep::Kind::kReduceLast : LocalStep::Kind::kReduce,
                   {received, own}, is_last ? target : received);
    partial = received;
  }
}

size_t WriteAllReduce(const ProgramShape& shape, SegmentBuilder& segment) {
  const Neighbors ring(shape);
  auto part = [&](int32_t j) { return PartOf(segment.count(), ring.n, j); };
  ReduceAround(
      ring, segment, [&](int32_t j) { return segment.Source(part(j)); }, part(0).count(),
      segment.Target(part(ring.rank)));
  const auto first_wave = static_cast<size_t>(ring.n - 1);
  for (int32_t step = 0; step < ring.n - 1; ++step) {
    const size_t wave = first_wave + static_cast<size_t>(step);
    segment.Send(wave, ring.next, segment.Target(part(ring.Before(step))));
    segment.Recv(wave, ring.previous, segment.Target(part(ring.Before(step + 1))));
  }
  return 2 * first_wave;
}

size_t WriteReduceScatter(const ProgramShape& shape, SegmentBuilder& segment) {
  const Neighbors ring(shape);
  auto source = [&](int32_t j) { return segment.Source(static_cast<uint64_t>(j) * shape.count); };
  ReduceAround(ring, segment, source, segment.count(), segment.Target());
  return static_cast<size_t>(ring.n - 1);
}

size_t WriteAllGather(const ProgramShape& shape, SegmentBuilder& segment) {
  const Neighbors ring(shape);
  auto chunk = [&](int32_t j) { return segment.Target(static_cast<uint64_t>(j) * shape.count); };
  Piece passed_on = segment.Source();
  for (int32_t step = 0; step < ring.n - 1; ++step) {
    const auto wave = static_cast<size_t>(step);
    const Piece received = chunk(ring.Before(step + 1));
    segment.Send(wave, ring.next, passed_on);
    segment.Recv(wave, ring.previous, received);
    passed_on = received;
  }
  segment.Copy(0, segment.Source(), chunk(ring.rank));
  return static_cast<size_t>(ring.n - 1);
}

SegmentWriter WriterOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllReduce:
      return WriteAllReduce;
    case OperationKind::kReduceScatter:
      return WriteReduceScatter;
    case OperationKind::kAllGather:
      return WriteAllGather;
    default:
      return nullptr;
  }
}

REGISTER_RECIPE(ring,
                "allreduce: 2 (n - 1) steps, 2 (n - 1) / n S bytes; "
                "reduce_scatter, allgather: n - 1 steps, (n - 1) C bytes",
                {.supports =
                     [](const ProgramShape& shape) {
                       return shape.world_size > 1 && WriterOf(shape.kind) != nullptr;
                     },
                 .make =
                     [](const ProgramShape& shape) {
                       return SegmentedProgram(shape, kCut, WriterOf(shape.kind));
                     }});

}  // namespace
}  // namespace pelton
