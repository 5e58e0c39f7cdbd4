// A recipe turns a collective into every rank's program, which it writes piece by piece, in
// segments that follow each other. One file each, registered by name.
#ifndef PELTON_COMM_COLLECTIVES_RECIPE_H_
#define PELTON_COMM_COLLECTIVES_RECIPE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/collectives/program.h"
#include "core/memory/dtype.h"
#include "core/pipeline/operation.h"
#include "core/registry/registry.h"

namespace pelton {

// What a program depends on. `count` is the operation's (operation.h says of what).
// Threads: a value. Owns: nothing.
struct ProgramShape {
  OperationKind kind = OperationKind::kAllReduce;
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t root = 0;  // where the kind has one
  uint64_t count = 0;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;

  friend bool operator==(const ProgramShape&, const ProgramShape&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const ProgramShape& shape) {
    return H::combine(std::move(state), shape.kind, shape.rank, shape.world_size, shape.root,
                      shape.count, shape.dtype, shape.reduce_op);
  }
};

// Fields that the kind does not look at are those of a shape that has none, so that alike
// operations have one program.
inline ProgramShape ShapeOf(const Operation& operation, Rank rank, WorldSize world_size) {
  return {.kind = operation.kind,
          .rank = rank.value(),
          .world_size = world_size.value(),
          .root = HasRoot(operation.kind) ? operation.peer : 0,
          .count = operation.count,
          .dtype = operation.dtype,
          .reduce_op = Reduces(operation.kind) ? operation.reduce_op : ReduceOp::kSum};
}

// Threads: a value; the functions are pure. Owns: nothing.
struct RecipeTraits {
  // The order in which elements are added: rank order is bitwise the one-process sum (SUM-1b); any
  // recipe gives the same bits on all ranks (SUM-1a).
  bool sums_in_rank_order = false;
  // Whether a 16-bit sum is rounded once, at the end, as SUM-1 asks; others are refused for 16
  // bits.
  bool rounds_once = false;
  bool (*supports)(const ProgramShape& shape) = nullptr;
  Program (*make)(const ProgramShape& shape) = nullptr;
};

using RecipeRegistry = Registry<RecipeTraits>;

// Units: elements. Threads: a value. Owns: nothing.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t count() const { return end - begin; }
};

// Part `index` of `count` elements cut into `parts` that differ by at most one; the first are the
// longer ones.
Range PartOf(uint64_t count, int32_t parts, int32_t index);

// Writes one rank's part in one segment of a collective: elements [offset, offset + count) of the
// operation's tensors, or of each of their chunks. Waves count from the segment's first one.
// Transfers and steps on no elements are left out, as they are on the peer.
// Threads: one. Owns: nothing; the program outlives it.
class SegmentBuilder {
 public:
  SegmentBuilder(ProgramStrand& strand, size_t first_wave, uint64_t offset, uint64_t count)
      : strand_(strand), first_wave_(first_wave), offset_(offset), count_(count) {}

  uint64_t count() const { return count_; }
  // Elements [begin, end) of the segment, of the chunk that begins at `chunk_offset`.
  Piece Source(Range range, uint64_t chunk_offset = 0) const;
  Piece Target(Range range, uint64_t chunk_offset = 0) const;
  // The whole segment.
  Piece Source(uint64_t chunk_offset = 0) const { return Source({0, count_}, chunk_offset); }
  Piece Target(uint64_t chunk_offset = 0) const { return Target({0, count_}, chunk_offset); }
  // Memory of the segment's own.
  Piece Scratch(uint64_t count);
  uint64_t scratch_count() const { return scratch_count_; }

  void Send(size_t wave, int32_t peer, const Piece& piece);
  void Recv(size_t wave, int32_t peer, const Piece& piece);
  // A message without elements.
  void Signal(size_t wave, int32_t peer, Transfer::Direction direction);
  void Copy(size_t wave, const Piece& from, const Piece& to);
  void Reduce(size_t wave, LocalStep::Kind kind, std::vector<Piece> sources, const Piece& target);

 private:
  ProgramWave& At(size_t wave);

  ProgramStrand& strand_;
  const size_t first_wave_;
  const uint64_t offset_;
  const uint64_t count_;
  uint64_t scratch_count_ = 0;
};

// Writes a segment; returns its number of waves, the same on all ranks.
using SegmentWriter = size_t (*)(const ProgramShape& shape, SegmentBuilder& segment);

// How a tensor is cut: into one segment per strand from `strands` * `min_segment_bytes` on, into
// more that follow each other in the strands once segments would be larger than
// `max_segment_bytes`. Threads: a value. Owns: nothing.
struct Segmentation {
  size_t strands = 1;
  uint64_t min_segment_bytes = 0;
  uint64_t max_segment_bytes = UINT64_MAX;
};

// A program of one segment; of several, where a segment is a piece of the operation's count.
Program WholeProgram(const ProgramShape& shape, SegmentWriter write);
Program SegmentedProgram(const ProgramShape& shape, const Segmentation& cut, SegmentWriter write);

// n ranks as p = 2^steps places, p the largest power of two that is not above n. Of the first
// 2 (n - p) ranks each odd one hands its part to the even one before it at the beginning and gets
// its result from there at the end. Places are in the ranks' order.
// Threads: a value. Owns: nothing.
class Fold {
 public:
  explicit Fold(const ProgramShape& shape);

  int32_t places() const { return places_; }
  size_t steps() const { return steps_; }
  bool folds() const { return excess_ > 0; }
  // Waves before the first step: one where anything is folded.
  size_t first_wave() const { return folds() ? 1 : 0; }

  // Whether this rank is folded into `partner()`, or has `partner()` folded into it, or neither.
  bool is_guest() const { return is_folded(rank_) && rank_ % 2 == 1; }
  bool is_host() const { return is_folded(rank_) && rank_ % 2 == 0; }
  int32_t partner() const { return is_guest() ? rank_ - 1 : rank_ + 1; }

  // This rank's place, unless it is a guest.
  int32_t place() const { return is_folded(rank_) ? rank_ / 2 : rank_ - excess_; }
  // The rank at a place; its guest, if it has one, is the next one. FirstRankOf(places()) is n.
  int32_t FirstRankOf(int32_t place) const { return place < excess_ ? 2 * place : place + excess_; }

 private:
  bool is_folded(int32_t rank) const { return rank < 2 * excess_; }

  int32_t rank_;
  int32_t places_ = 1;
  size_t steps_ = 0;
  int32_t excess_;
};

}  // namespace pelton

// One line per recipe; the summary says its steps and the bytes that a rank sends.
#define REGISTER_RECIPE(name, summary, ...)                            \
  static const bool pelton_registered_recipe_##name [[maybe_unused]] = \
      ::pelton::RecipeRegistry::Get().Register(#name, summary, __VA_ARGS__)

#endif  // PELTON_COMM_COLLECTIVES_RECIPE_H_
