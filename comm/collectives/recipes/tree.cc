// Binomial trees. Ranks count from the root (v = rank - root, mod n); at level b each v that is a
// multiple of 2^(b+1) is the parent of v + 2^b, whose subtree is the ranks [v + 2^b, v + 2^(b+1)).
// Bytes that a rank sends, for a tensor of S bytes or chunks of C bytes:
//   broadcast  ceil(log2 n) steps; S to each child
//   reduce     ceil(log2 n) steps; S. Neighbours add first, then pairs of neighbours, and so on,
//              beginning at the root.
//   gather     ceil(log2 n) steps; its subtree's chunks: at most n / 2 C
//   scatter    ceil(log2 n) steps; its children's subtrees' chunks: at most (n - 1) C
#include <algorithm>
#include <utility>

#include "comm/collectives/recipe.h"

namespace pelton {
namespace {

// Threads: a value. Owns: nothing.
class Tree {
 public:
  explicit Tree(const ProgramShape& shape) : shape_(shape), v_(Relative(shape.rank)) {
    while ((int32_t{1} << levels_) < shape.world_size) ++levels_;
    while (own_level_ < levels_ && (v_ >> own_level_) % 2 == 0) ++own_level_;
  }

  int32_t v() const { return v_; }
  size_t levels() const { return levels_; }
  bool is_root() const { return v_ == 0; }
  bool is_leaf() const { return ChildAt(0) < 0; }
  // Level at which this rank meets its parent; levels() for the root. Its children are below.
  size_t own_level() const { return own_level_; }
  int32_t parent() const { return v_ - (int32_t{1} << own_level_); }
  // -1: none.
  int32_t ChildAt(size_t level) const {
    const int32_t child = v_ + (int32_t{1} << level);
    return level < own_level_ && child < shape_.world_size ? child : -1;
  }
  // Of the subtree of a v that meets its parent at `level`.
  int32_t SizeAt(int32_t v, size_t level) const {
    return std::min(int32_t{1} << level, shape_.world_size - v);
  }

  int32_t RankOf(int32_t v) const { return (v + shape_.root) % shape_.world_size; }

 private:
  int32_t Relative(int32_t rank) const {
    return (rank + shape_.world_size - shape_.root) % shape_.world_size;
  }

  const ProgramShape& shape_;
  int32_t v_;
  size_t levels_ = 0;
  size_t own_level_ = 0;
};

size_t WriteBroadcast(const ProgramShape& shape, SegmentBuilder& segment) {
  const Tree tree(shape);
  auto wave_of = [&](size_t level) { return tree.levels() - 1 - level; };
  if (!tree.is_root()) {
    segment.Recv(wave_of(tree.own_level()), tree.RankOf(tree.parent()), segment.Target());
  }
  for (size_t level = tree.own_level(); level-- > 0;) {
    const int32_t child = tree.ChildAt(level);
    if (child >= 0) segment.Send(wave_of(level), tree.RankOf(child), segment.Target());
  }
  return tree.levels();
}

size_t WriteReduce(const ProgramShape& shape, SegmentBuilder& segment) {
  const Tree tree(shape);
  Piece sum = segment.Source();
  Piece into = segment.Target();
  if (!tree.is_root() && !tree.is_leaf()) into = segment.Scratch(segment.count());
  const Piece received = tree.is_leaf() ? Piece{} : segment.Scratch(segment.count());
  for (size_t level = 0; level < tree.own_level(); ++level) {
    const int32_t child = tree.ChildAt(level);
    if (child < 0) continue;
    // The root's last child is that of the highest level.
    const bool is_last = tree.is_root() && level + 1 == tree.levels();
    segment.Recv(level, tree.RankOf(child), received);
    segment.Reduce(level, is_last ? LocalStep::Kind::kReduceLast : LocalStep::Kind::kReduce,
                   {sum, received}, into);
    sum = into;
  }
  if (!tree.is_root()) segment.Send(tree.own_level(), tree.RankOf(tree.parent()), sum);
  return tree.levels();
}

// Chunks of the tensor at the root, which lie in the ranks' order: those of [v, v + size) are one
// piece, or two around the end.
template <typename Visit>
void VisitChunks(const ProgramShape& shape, const Tree& tree, int32_t v, int32_t size,
                 Visit visit) {
  const int32_t first = tree.RankOf(v);
  const int32_t before_end = std::min(size, shape.world_size - first);
  const auto length = [&](int32_t chunks) { return static_cast<uint64_t>(chunks) * shape.count; };
  visit(Range{length(first), length(first + before_end)}, uint64_t{0});
  visit(Range{0, length(size - before_end)}, length(before_end));
}

// The same two pieces in the memory of a rank inside the tree, which holds its subtree's chunks
// from its own on.
Piece InSubtree(const ProgramShape& shape, const Tree& tree, const Piece& memory, int32_t v,
                Range range, uint64_t offset) {
  return {memory.buffer, memory.offset + static_cast<uint64_t>(v - tree.v()) * shape.count + offset,
          range.count()};
}

size_t WriteGather(const ProgramShape& shape, SegmentBuilder& segment) {
  const Tree tree(shape);
  const int32_t size = tree.SizeAt(tree.v(), tree.own_level());
  Piece mine = segment.Source();
  if (tree.is_root()) {
    segment.Copy(0, mine, segment.Target(static_cast<uint64_t>(shape.root) * shape.count));
  } else if (!tree.is_leaf()) {
    const Piece own = mine;
    mine = segment.Scratch(static_cast<uint64_t>(size) * shape.count);
    segment.Copy(0, own, {mine.buffer, mine.offset, own.count});
  }
  for (size_t level = 0; level < tree.own_level(); ++level) {
    const int32_t child = tree.ChildAt(level);
    if (child < 0) continue;
    VisitChunks(shape, tree, child, tree.SizeAt(child, level), [&](Range range, uint64_t offset) {
      segment.Recv(level, tree.RankOf(child),
                   tree.is_root() ? segment.Target(range)
                                  : InSubtree(shape, tree, mine, child, range, offset));
    });
  }
  if (!tree.is_root()) {
    VisitChunks(shape, tree, tree.v(), size, [&](Range range, uint64_t offset) {
      segment.Send(tree.own_level(), tree.RankOf(tree.parent()),
                   InSubtree(shape, tree, mine, tree.v(), range, offset));
    });
  }
  return tree.levels();
}

size_t WriteScatter(const ProgramShape& shape, SegmentBuilder& segment) {
  const Tree tree(shape);
  auto wave_of = [&](size_t level) { return tree.levels() - 1 - level; };
  const int32_t size = tree.SizeAt(tree.v(), tree.own_level());
  Piece mine = segment.Target();
  if (!tree.is_root()) {
    if (!tree.is_leaf()) mine = segment.Scratch(static_cast<uint64_t>(size) * shape.count);
    const size_t wave = wave_of(tree.own_level());
    VisitChunks(shape, tree, tree.v(), size, [&](Range range, uint64_t offset) {
      segment.Recv(wave, tree.RankOf(tree.parent()),
                   InSubtree(shape, tree, mine, tree.v(), range, offset));
    });
    if (!tree.is_leaf()) {
      segment.Copy(wave, {mine.buffer, mine.offset, shape.count}, segment.Target());
    }
  } else {
    segment.Copy(0, segment.Source(static_cast<uint64_t>(shape.root) * shape.count),
                 segment.Target());
  }
  for (size_t level = tree.own_level(); level-- > 0;) {
    const int32_t child = tree.ChildAt(level);
    if (child < 0) continue;
    VisitChunks(shape, tree, child, tree.SizeAt(child, level), [&](Range range, uint64_t offset) {
      segment.Send(wave_of(level), tree.RankOf(child),
                   tree.is_root() ? segment.Source(range)
                                  : InSubtree(shape, tree, mine, child, range, offset));
    });
  }
  return tree.levels();
}

// Large tensors go down the tree in pieces that follow each other.
constexpr Segmentation kCut{
    .strands = 4, .min_segment_bytes = 256 << 10, .max_segment_bytes = 1 << 20};

Program Make(const ProgramShape& shape) {
  switch (shape.kind) {
    case OperationKind::kBroadcast:
      return SegmentedProgram(shape, kCut, WriteBroadcast);
    case OperationKind::kReduce:
      return SegmentedProgram(shape, kCut, WriteReduce);
    case OperationKind::kGather:
      return WholeProgram(shape, WriteGather);
    default:
      return WholeProgram(shape, WriteScatter);
  }
}

bool Supports(const ProgramShape& shape) {
  switch (shape.kind) {
    case OperationKind::kBroadcast:
    case OperationKind::kReduce:
    case OperationKind::kGather:
    case OperationKind::kScatter:
      return shape.world_size > 1;
    default:
      return false;
  }
}

REGISTER_RECIPE(tree,
                "ceil(log2 n) steps; broadcast: S bytes to each child; reduce: S bytes; "
                "gather: up to n / 2 C bytes; scatter: up to (n - 1) C bytes",
                {.supports = Supports, .make = Make});

}  // namespace
}  // namespace pelton
