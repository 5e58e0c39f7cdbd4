// How the ranks share the work of one collective: every recipe of this transport as a list of
// independent tasks per rank.
#ifndef PELTON_COMM_TRANSPORT_SHM_TASK_LIST_H_
#define PELTON_COMM_TRANSPORT_SHM_TASK_LIST_H_

#include <cstdint>

#include "core/base/ids.h"
#include "core/pipeline/operation.h"

namespace pelton::shm {

// The kinds that TaskList and Collective know. All others are programs (programs.h).
inline constexpr KindSet kKindsWithTasks = {
    OperationKind::kBarrier,       OperationKind::kAllReduce, OperationKind::kReduce,
    OperationKind::kReduceScatter, OperationKind::kAllGather, OperationKind::kBroadcast,
    OperationKind::kGather,        OperationKind::kScatter,   OperationKind::kAllToAll};

// A piece of work: bounded, so that Progress is. Units: bytes, offsets into tensors.
struct Task {
  enum Kind : uint8_t { kReduce, kCopy };
  Kind kind = kCopy;
  int from = 0;  // kCopy: whose source
  uint64_t source_offset = 0;
  uint64_t target_offset = 0;
  uint64_t size_bytes = 0;
};

// Whose targets a kReduce task writes.
enum class TaskTargets : uint8_t { kOwner, kRoot, kAll };

// What a rank contributes and what it receives, where `operation` is as posted: a broadcast's root
// has its tensor as source, too. Units: bytes.
Extent PostedExtentOf(const Operation& operation, int rank, int world_size);

// The recipes (n ranks, S bytes per tensor; bytes as read and written by all ranks together):
//
//   kDirect: all tensors lie in regions. Any rank may do any task, so a rank that has finished its
//   own takes over those of slower ones; n * n tasks at least, one wait for the end of all.
//     allreduce      rank r's tasks: reduce slice r of all sources, write it to all targets.
//                    Reads nS, writes nS. A rank whose tensor is staged does its own tasks itself,
//                    because its slice is not staged.
//     reduce         the same, writing to the root's target only. Reads nS, writes S.
//   kPull: some tensor is private. Each rank writes only its own memory and reads the others'.
//     reduce         the root reduces everything. Reads nS, writes S.
//   Both:
//     reduce_scatter rank r reduces chunk r of all sources. Reads nS, writes S.
//     allgather, alltoall, broadcast, gather, scatter   rank r copies what it is to receive.
//
// Sums are in rank order whoever does the task (SUM-1b). Tasks touch disjoint bytes of every
// target; in place, a task reads the bytes of a source before it writes them, and no other task
// reads them. An allreduce of private memory is staged, and so always kDirect.
// Threads: a value. Owns: nothing.
class TaskList {
 public:
  enum class Mode : uint8_t { kDirect, kPull };

  TaskList() = default;
  TaskList(const Operation& operation, int world_size, Mode mode);

  Mode mode() const { return mode_; }
  TaskTargets targets() const { return targets_; }
  uint64_t TaskCount(int owner) const;
  // Task `index` of those of `owner`.
  Task At(int owner, uint64_t index) const;

  struct Slice {
    uint64_t begin = 0;
    uint64_t size_bytes = 0;
  };
  // What `rank` reduces.
  Slice SliceOf(int rank) const;

 private:
  uint64_t ChunksOf(uint64_t size_bytes) const;
  int PieceCount(int owner) const;  // copied tensors or slices
  Task Piece(int owner, int index) const;
  uint64_t LargestPiece() const;

  Operation operation_;
  Mode mode_ = Mode::kDirect;
  TaskTargets targets_ = TaskTargets::kOwner;
  bool reduces_ = false;
  int world_size_ = 1;
  uint64_t tensor_bytes_ = 0;  // of `count` elements
  uint64_t slice_bytes_ = 0;
  uint64_t chunk_bytes_ = 1;
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_TASK_LIST_H_
