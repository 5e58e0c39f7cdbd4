#include "comm/collectives/recipe.h"

#include <algorithm>
#include <utility>

namespace pelton {
namespace {

// A program of a tensor of any size stays small.
constexpr uint64_t kMaxSegments = 256;

// Bytes that a rank holds of the operation: what a segment's size is measured in.
uint64_t BytesOf(const ProgramShape& shape) {
  const OperationTraits& traits = TraitsOf(shape.kind);
  const bool in_chunks =
      traits.source == TensorLength::kChunks || traits.target == TensorLength::kChunks;
  return shape.count * SizeOf(shape.dtype) *
         (in_chunks ? static_cast<uint64_t>(shape.world_size) : 1);
}

int32_t SegmentCount(const ProgramShape& shape, const Segmentation& cut) {
  const uint64_t bytes = BytesOf(shape);
  const uint64_t most = std::min(kMaxSegments, std::max<uint64_t>(shape.count, 1));
  const uint64_t for_overlap =
      cut.min_segment_bytes == 0
          ? 1
          : std::clamp<uint64_t>(bytes / cut.min_segment_bytes, 1, cut.strands);
  const uint64_t for_size = bytes / cut.max_segment_bytes + (bytes % cut.max_segment_bytes != 0);
  return static_cast<int32_t>(std::min(most, std::max(for_overlap, for_size)));
}

// Segments count their scratch memory from 0; strands have theirs one behind the other.
void PlaceScratch(Program& program, const std::vector<uint64_t>& counts) {
  for (size_t i = 0; i < program.strands.size(); ++i) {
    auto move = [base = program.scratch_count](Piece& piece) {
      if (piece.buffer == Buffer::kScratch) piece.offset += base;
    };
    for (ProgramWave& wave : program.strands[i]) {
      for (Transfer& transfer : wave.transfers) move(transfer.piece);
      for (LocalStep& step : wave.local) {
        for (Piece& source : step.sources) move(source);
        move(step.target);
      }
    }
    program.scratch_count += counts[i];
  }
}

}  // namespace

Range PartOf(uint64_t count, int32_t parts, int32_t index) {
  const auto n = static_cast<uint64_t>(parts);
  const auto i = static_cast<uint64_t>(index);
  const uint64_t begin = count / n * i + std::min(i, count % n);
  return {begin, begin + count / n + (i < count % n ? 1 : 0)};
}

Piece SegmentBuilder::Source(Range range, uint64_t chunk_offset) const {
  return {Buffer::kSource, chunk_offset + offset_ + range.begin, range.count()};
}

Piece SegmentBuilder::Target(Range range, uint64_t chunk_offset) const {
  return {Buffer::kTarget, chunk_offset + offset_ + range.begin, range.count()};
}

Piece SegmentBuilder::Scratch(uint64_t count) {
  const Piece piece{Buffer::kScratch, scratch_count_, count};
  scratch_count_ += count;
  return piece;
}

ProgramWave& SegmentBuilder::At(size_t wave) {
  const size_t index = first_wave_ + wave;
  if (strand_.size() <= index) strand_.resize(index + 1);
  return strand_[index];
}

void SegmentBuilder::Send(size_t wave, int32_t peer, const Piece& piece) {
  if (piece.count == 0) return;
  At(wave).transfers.push_back({Transfer::Direction::kSend, peer, piece});
}

void SegmentBuilder::Recv(size_t wave, int32_t peer, const Piece& piece) {
  if (piece.count == 0) return;
  At(wave).transfers.push_back({Transfer::Direction::kRecv, peer, piece});
}

void SegmentBuilder::Signal(size_t wave, int32_t peer, Transfer::Direction direction) {
  At(wave).transfers.push_back({direction, peer, {}});
}

void SegmentBuilder::Copy(size_t wave, const Piece& from, const Piece& to) {
  if (to.count == 0) return;
  At(wave).local.push_back({LocalStep::Kind::kCopy, {from}, to});
}

void SegmentBuilder::Reduce(size_t wave, LocalStep::Kind kind, std::vector<Piece> sources,
                            const Piece& target) {
  if (target.count == 0) return;
  At(wave).local.push_back({kind, std::move(sources), target});
}

Program WholeProgram(const ProgramShape& shape, SegmentWriter write) {
  return SegmentedProgram(shape, {}, write);
}

Program SegmentedProgram(const ProgramShape& shape, const Segmentation& cut, SegmentWriter write) {
  const int32_t segments = SegmentCount(shape, cut);
  const size_t strands = std::min(cut.strands, static_cast<size_t>(segments));
  Program program;
  program.strands.resize(strands);
  std::vector<size_t> first_waves(strands);
  std::vector<uint64_t> scratch_counts(strands);
  for (int32_t i = 0; i < segments; ++i) {
    const size_t strand = static_cast<size_t>(i) % strands;
    const Range range = PartOf(shape.count, segments, i);
    SegmentBuilder segment(program.strands[strand], first_waves[strand], range.begin,
                           range.count());
    first_waves[strand] += write(shape, segment);
    scratch_counts[strand] = std::max(scratch_counts[strand], segment.scratch_count());
  }
  PlaceScratch(program, scratch_counts);
  return program;
}

Fold::Fold(const ProgramShape& shape) : rank_(shape.rank) {
  while (2 * places_ <= shape.world_size) {
    places_ *= 2;
    ++steps_;
  }
  excess_ = shape.world_size - places_;
}

}  // namespace pelton
