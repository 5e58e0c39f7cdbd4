// Every rank sends to each other one exactly what that one needs. Sums are taken by one rank, of
// all n sources at once, in rank order: bitwise the one-process sum, rounded once. For a tensor of
// S bytes, or chunks of C bytes:
//   allreduce       2 steps, 2 (n - 1) / n S bytes: chunk j goes to rank j, which reduces it and
//                   sends the result to all
//   reduce          2 steps, S bytes ((n - 1) / n S by the root): the same, result to the root
//   broadcast       2 steps, S bytes by the root, (n - 2) / (n - 1) S by the others: each of them
//                   gets a part from the root and passes it on
//   reduce_scatter, allgather, alltoall   1 step, (n - 1) C bytes
//   gather, scatter   1 step, C bytes by each rank, or (n - 1) C by the root
#include "comm/collectives/recipe.h"

namespace pelton {
namespace {

constexpr Segmentation kCut{
    .strands = 4, .min_segment_bytes = 512 << 10, .max_segment_bytes = 8 << 20};

// The other ranks in the order in which this one talks to them: to `to` while from `from`, so that
// in each step every rank is sent to by one.
// Threads: a value. Owns: nothing.
struct Partners {
  Partners(const ProgramShape& shape, int32_t step)
      : to((shape.rank + step) % shape.world_size),
        from((shape.rank + shape.world_size - step) % shape.world_size) {}
  int32_t to;
  int32_t from;
};

uint64_t ChunkOffset(const ProgramShape& shape, int32_t index) {
  return static_cast<uint64_t>(index) * shape.count;
}

// One step: `sent(j)` goes to rank j, what comes is reduced with `sent(rank)` into `target`.
template <typename Sent>
void ReduceInto(const ProgramShape& shape, SegmentBuilder& segment, Sent sent,
                const Piece& target) {
  std::vector<Piece> sources(static_cast<size_t>(shape.world_size), sent(shape.rank));
  for (int32_t step = 1; step < shape.world_size; ++step) {
    const Partners partners(shape, step);
    Piece& received = sources[static_cast<size_t>(partners.from)];
    received = segment.Scratch(target.count);
    segment.Send(0, partners.to, sent(partners.to));
    segment.Recv(0, partners.from, received);
  }
  segment.Reduce(0, LocalStep::Kind::kReduceLast, std::move(sources), target);
}

size_t WriteAllReduce(const ProgramShape& shape, SegmentBuilder& segment) {
  auto part = [&](int32_t j) { return PartOf(segment.count(), shape.world_size, j); };
  const Piece mine = segment.Target(part(shape.rank));
  ReduceInto(
      shape, segment, [&](int32_t j) { return segment.Source(part(j)); }, mine);
  for (int32_t step = 1; step < shape.world_size; ++step) {
    const Partners partners(shape, step);
    segment.Send(1, partners.to, mine);
    segment.Recv(1, partners.from, segment.Target(part(partners.from)));
  }
  return 2;
}

size_t WriteReduce(const ProgramShape& shape, SegmentBuilder& segment) {
  auto part = [&](int32_t j) { return PartOf(segment.count(), shape.world_size, j); };
  const bool is_root = shape.rank == shape.root;
  const Range mine = part(shape.rank);
  const Piece reduced = is_root ? segment.Target(mine) : segment.Scratch(mine.count());
  ReduceInto(
      shape, segment, [&](int32_t j) { return segment.Source(part(j)); }, reduced);
  if (!is_root) segment.Send(1, shape.root, reduced);
  for (int32_t step = 1; is_root && step < shape.world_size; ++step) {
    const Partners partners(shape, step);
    segment.Recv(1, partners.from, segment.Target(part(partners.from)));
  }
  return 2;
}

size_t WriteBroadcast(const ProgramShape& shape, SegmentBuilder& segment) {
  const int32_t others = shape.world_size - 1;
  // The part that goes through rank j, which is not the root.
  auto through = [&](int32_t j) {
    return segment.Target(PartOf(segment.count(), others, j - (j > shape.root ? 1 : 0)));
  };
  if (shape.rank != shape.root) segment.Recv(0, shape.root, through(shape.rank));
  for (int32_t step = 1; step < shape.world_size; ++step) {
    const Partners partners(shape, step);
    if (shape.rank == shape.root) {
      segment.Send(0, partners.to, through(partners.to));
      continue;
    }
    if (partners.to != shape.root) segment.Send(1, partners.to, through(shape.rank));
    if (partners.from != shape.root) segment.Recv(1, partners.from, through(partners.from));
  }
  return 2;
}

size_t WriteReduceScatter(const ProgramShape& shape, SegmentBuilder& segment) {
  ReduceInto(
      shape, segment, [&](int32_t j) { return segment.Source(ChunkOffset(shape, j)); },
      segment.Target());
  return 1;
}

// Allgather, alltoall, gather and scatter: chunks go to where they belong.
size_t WriteMove(const ProgramShape& shape, SegmentBuilder& segment) {
  const bool to_all = shape.kind != OperationKind::kGather;
  const bool from_all = shape.kind != OperationKind::kScatter;
  const bool many_sources =
      shape.kind == OperationKind::kAllToAll || shape.kind == OperationKind::kScatter;
  const bool many_targets = shape.kind != OperationKind::kScatter;
  auto source = [&](int32_t to) {
    return segment.Source(many_sources ? ChunkOffset(shape, to) : 0);
  };
  auto target = [&](int32_t from) {
    return segment.Target(many_targets ? ChunkOffset(shape, from) : 0);
  };
  auto moves = [&](int32_t from, int32_t to) {
    return (to_all || to == shape.root) && (from_all || from == shape.root);
  };
  for (int32_t step = 1; step < shape.world_size; ++step) {
    const Partners partners(shape, step);
    if (moves(shape.rank, partners.to)) segment.Send(0, partners.to, source(partners.to));
    if (moves(partners.from, shape.rank)) segment.Recv(0, partners.from, target(partners.from));
  }
  if (moves(shape.rank, shape.rank)) segment.Copy(0, source(shape.rank), target(shape.rank));
  return 1;
}

SegmentWriter WriterOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllReduce:
      return WriteAllReduce;
    case OperationKind::kReduce:
      return WriteReduce;
    case OperationKind::kBroadcast:
      return WriteBroadcast;
    case OperationKind::kReduceScatter:
      return WriteReduceScatter;
    case OperationKind::kAllGather:
    case OperationKind::kAllToAll:
    case OperationKind::kGather:
    case OperationKind::kScatter:
      return WriteMove;
    default:
      return nullptr;
  }
}

REGISTER_RECIPE(pairwise,
                "allreduce: 2 steps, 2 (n - 1) / n S bytes; reduce, broadcast: 2 steps, S bytes; "
                "reduce_scatter, allgather, alltoall: 1 step, (n - 1) C bytes; "
                "gather, scatter: 1 step, C bytes (scatter's root: (n - 1) C)",
                {.sums_in_rank_order = true,
                 .rounds_once = true,
                 .supports =
                     [](const ProgramShape& shape) {
                       return shape.world_size > 1 && WriterOf(shape.kind) != nullptr;
                     },
                 .make =
                     [](const ProgramShape& shape) {
                       return SegmentedProgram(shape, kCut, WriterOf(shape.kind));
                     }});

}  // namespace
}  // namespace pelton
