#include "comm/transport/shm/task_list.h"

#include <algorithm>

#include "core/base/limits.h"

namespace pelton::shm {
namespace {

// Chunks are what ranks take over from each other, and what one Progress does: small enough to
// balance, large enough that handing them out costs nothing. Measured in docs/shared_memory.md.
constexpr uint64_t kMinChunkBytes = uint64_t{16} << 10;
constexpr uint64_t kMaxChunkBytes = uint64_t{256} << 10;
constexpr uint64_t kMaxPulledChunkBytes = uint64_t{128} << 10;  // copies of it stay in the L2 cache
constexpr uint64_t kChunksPerSlice = 8;
constexpr uint64_t kSliceAlignmentBytes = 64;  // whole elements, whole cache lines

}  // namespace

Extent PostedExtentOf(const Operation& operation, int rank, int world_size) {
  Extent extent = ExtentOf(operation, Rank(rank), WorldSize(world_size));
  if (RootReadsTarget(operation.kind) && operation.peer == rank) {
    extent.source_bytes = extent.target_bytes;
    extent.target_bytes = 0;
  }
  return extent;
}

TaskList::TaskList(const Operation& operation, int world_size, Mode mode)
    : operation_(operation),
      mode_(mode),
      reduces_(Reduces(operation.kind)),
      world_size_(world_size),
      tensor_bytes_(operation.count * SizeOf(operation.dtype)) {
  const auto n = static_cast<uint64_t>(world_size);
  slice_bytes_ = RoundUp((tensor_bytes_ + n - 1) / n, kSliceAlignmentBytes);
  if (operation.kind == OperationKind::kReduceScatter) slice_bytes_ = tensor_bytes_;
  if (operation.kind == OperationKind::kReduce) targets_ = TaskTargets::kRoot;
  if (operation.kind == OperationKind::kAllReduce && mode == Mode::kDirect) {
    targets_ = TaskTargets::kAll;
  }
  const uint64_t even = RoundUp(LargestPiece() / kChunksPerSlice + 1, 4096);
  chunk_bytes_ =
      std::clamp(even, kMinChunkBytes, mode == Mode::kPull ? kMaxPulledChunkBytes : kMaxChunkBytes);
}

uint64_t TaskList::LargestPiece() const { return reduces_ ? slice_bytes_ : tensor_bytes_; }

uint64_t TaskList::ChunksOf(uint64_t size_bytes) const {
  return (size_bytes + chunk_bytes_ - 1) / chunk_bytes_;
}

TaskList::Slice TaskList::SliceOf(int rank) const {
  if (!reduces_) return {};
  if (operation_.kind == OperationKind::kReduceScatter) {
    return {static_cast<uint64_t>(rank) * tensor_bytes_, tensor_bytes_};
  }
  if (operation_.kind == OperationKind::kReduce && mode_ == Mode::kPull) {
    return {0, rank == operation_.peer ? tensor_bytes_ : 0};
  }
  const uint64_t begin = std::min(static_cast<uint64_t>(rank) * slice_bytes_, tensor_bytes_);
  return {begin, std::min(slice_bytes_, tensor_bytes_ - begin)};
}

int TaskList::PieceCount(int owner) const {
  switch (operation_.kind) {
    case OperationKind::kAllGather:
    case OperationKind::kAllToAll:
      return world_size_;
    case OperationKind::kGather:
      return owner == operation_.peer ? world_size_ : 0;
    case OperationKind::kScatter:
      return 1;
    case OperationKind::kBroadcast:
      return owner == operation_.peer ? 0 : 1;
    default:
      return 0;
  }
}

// The whole of what `owner` copies from one rank. Owners begin at different ranks.
Task TaskList::Piece(int owner, int index) const {
  Task task;
  task.from = (owner + 1 + index) % world_size_;
  task.size_bytes = tensor_bytes_;
  const uint64_t from_place = static_cast<uint64_t>(task.from) * tensor_bytes_;
  const uint64_t own_place = static_cast<uint64_t>(owner) * tensor_bytes_;
  switch (operation_.kind) {
    case OperationKind::kAllToAll:
      task.source_offset = own_place;
      task.target_offset = from_place;
      break;
    case OperationKind::kAllGather:
    case OperationKind::kGather:
      task.target_offset = from_place;
      break;
    case OperationKind::kScatter:
      task.source_offset = own_place;
      [[fallthrough]];
    default:
      task.from = operation_.peer;
  }
  return task;
}

uint64_t TaskList::TaskCount(int owner) const {
  uint64_t count = ChunksOf(SliceOf(owner).size_bytes);
  for (int piece = 0; piece < PieceCount(owner); ++piece) {
    count += ChunksOf(Piece(owner, piece).size_bytes);
  }
  return count;
}

Task TaskList::At(int owner, uint64_t index) const {
  Task task;
  const Slice slice = SliceOf(owner);
  const uint64_t reductions = ChunksOf(slice.size_bytes);
  if (index < reductions) {
    task.kind = Task::kReduce;
    task.source_offset = slice.begin;
    task.target_offset = operation_.kind == OperationKind::kReduceScatter ? 0 : slice.begin;
    task.size_bytes = slice.size_bytes;
  } else {
    index -= reductions;
    int piece = 0;
    for (task = Piece(owner, 0); index >= ChunksOf(task.size_bytes); task = Piece(owner, piece)) {
      index -= ChunksOf(task.size_bytes);
      ++piece;
    }
  }
  const uint64_t begin = index * chunk_bytes_;
  task.source_offset += begin;
  task.target_offset += begin;
  task.size_bytes = std::min(chunk_bytes_, task.size_bytes - begin);
  return task;
}

}  // namespace pelton::shm
