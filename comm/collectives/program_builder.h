// How recipes write programs: piece by piece, in segments that follow each other.
#ifndef PELTON_COMM_COLLECTIVES_PROGRAM_BUILDER_H_
#define PELTON_COMM_COLLECTIVES_PROGRAM_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/collectives/program.h"
#include "comm/collectives/recipe.h"

namespace pelton {

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
      : lane_(strand), first_wave_(first_wave), offset_(offset), count_(count) {}

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

  ProgramStrand& lane_;
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

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_PROGRAM_BUILDER_H_
