// One collective at a time, as a state machine.
#ifndef PELTON_COMM_TRANSPORT_SHM_COLLECTIVE_H_
#define PELTON_COMM_TRANSPORT_SHM_COLLECTIVE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"
#include "comm/transport/shm/context.h"
#include "comm/transport/shm/point_to_point.h"
#include "comm/transport/shm/programs.h"
#include "comm/transport/shm/task_list.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"

namespace pelton::shm {

// Runs a communicator's collectives, one after the other:
//
//   stage    private memory that peers cannot read, or that is small, is copied to a region of
//            ours, of an allreduce all but the slice that this rank reduces
//   post     the operation, and eager data with it, are shown to the peers: arrived = sequence
//   arrive   wait for the posts of all; if they differ, the operation fails on every rank
//   work     eager: reduce or copy out of the eager buffers, done. Else do tasks of the list
//   finish   wait until all tasks of all ranks are done
//   unstage  copy the result out of our region; the own slice is where it belongs
//
// A kind that is not of context.native_kinds is posted and arrives, so that ranks whose operations
// differ find that out, and then runs as a program over the communicator's sends and receives.
//
// A large allreduce of private memory goes through stage to unstage once per segment. One that is
// launched in pieces finds each segment in its region, and leaves the result there.
//
// Threads: one at a time; arrived() by any. Owns: its staging region and scratch memory.
class Collective {
 public:
  // Private tensors up to this size go through a region of ours even where peers could read them:
  // reading across processes costs a system call and a look at every page. What is reduced on all
  // ranks goes through it in segments of this size, which stay in the cache that the cores share.
  static constexpr uint64_t kStageBytes = uint64_t{1} << 20;

  // Both outlive this object.
  Collective(const Context& context, PointToPoint& point_to_point);
  ~Collective();

  bool is_active() const { return phase_ != Phase::kIdle; }
  // Takes up `operation`. Requires: !is_active(). `source` and `target` are its addresses in this
  // process. `pieces`: of an operation that was launched in pieces; it has no addresses.
  void Start(const Operation& operation, std::byte* source, std::byte* target,
             Pieces* pieces = nullptr);
  // Does one bounded step; true if anything moved. Sets `*done` with the operation's status when it
  // ends. A status that is neither OK nor InvalidArgument must abort the communicator.
  bool Step(bool* done, absl::Status* status);
  // Whether `operation`, of any kind, can be started. Errors: Unimplemented: no recipe runs it.
  absl::Status Check(const Operation& operation);
  // A message that a program launched has ended.
  void EndMessage(uint64_t ticket, const absl::Status& status) {
    programs_->messages().End(ticket, status);
  }
  // Ends the one under way, whose staged tensors nobody reads any more.
  void Cancel();
  // The user's region that peers may be writing, or have written in any segment: that of the one
  // under way, or of the last one. kPrivateRegion: none.
  RegionId written_by_peers() const { return written_by_peers_; }

  // Whether the work waits for tasks that only `peer` may do, or for one that it is in the middle
  // of.
  bool WaitsForTasksOf(int peer) const;

  // The number of this rank's last post: a collective in segments posts several times.
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  enum class Phase : uint8_t {
    kIdle,
    kStage,
    kPost,
    kArrive,
    kReach,
    kWork,
    kFinish,
    kUnstage,
    kProgram
  };
  enum class Outcome : uint8_t { kWaiting, kMoved, kDone };
  static constexpr uint64_t kNotInSegments = ~uint64_t{0};

  void Begin(const Operation& operation, std::byte* source, std::byte* target);
  bool RunsInSegments() const;
  void BeginSegment(uint64_t begin);
  absl::StatusOr<Outcome> Advance();
  absl::StatusOr<Outcome> Stage();
  absl::StatusOr<Outcome> TakePiece();
  uint64_t PieceIndex() const { return (segment_end_ - 1) / kStageBytes; }
  absl::StatusOr<Outcome> Post();
  absl::StatusOr<Outcome> Arrive();
  absl::StatusOr<Outcome> ReachAll();
  absl::StatusOr<Outcome> Work();
  absl::StatusOr<Outcome> Finish();
  absl::StatusOr<Outcome> Unstage();
  absl::StatusOr<Outcome> RunProgram();

  bool RunsByTasks() const { return context_.native_kinds.Contains(operation_.kind); }
  bool NeedsStaging(uint64_t source_bytes) const;
  absl::Status ProvideStaging(uint64_t size_bytes);
  bool CopyStaged(std::byte* to, const std::byte* from, uint64_t size_bytes);
  void DropStaging();
  bool AllArrived();
  bool AllFinished();
  absl::Status ComparePosts() const;
  void FinishEagerly();
  bool IsDirect() const;
  absl::StatusOr<Outcome> RunOwnTask();
  absl::StatusOr<Outcome> RunAnyTask();
  std::optional<uint64_t> NextTask(int owner);
  // Whether all that the task reads is still what was launched.
  bool MayRead(const Reading& reading, const Task& task) const;
  absl::Status Run(int owner, const Task& task);
  absl::Status RunReduction(int owner, const Task& task);
  Board& BoardOf(int rank) const { return context_.arena.rank(rank).board; }
  const Operation& PostOf(int peer) const;

  const Context& context_;
  PointToPoint& point_to_point_;
  std::unique_ptr<Programs> programs_;  // from the first one on
  Phase phase_ = Phase::kIdle;
  std::atomic<uint64_t> sequence_ = 0;
  uint64_t operation_count_ = 0;
  Operation whole_;  // as the caller launched it
  std::byte* whole_source_ = nullptr;
  std::byte* whole_target_ = nullptr;
  Pieces* pieces_ = nullptr;  // where the memory of the whole comes in; null: it is ours
  uint64_t segment_end_ = kNotInSegments;  // bytes that are done when this segment is
  Operation operation_;                    // as posted: the whole, or a segment
  std::byte* source_ = nullptr;            // in the caller's memory
  std::byte* target_ = nullptr;
  Extent extent_;
  bool is_eager_ = false;
  bool unstages_ = false;      // a staged allreduce
  TaskList::Slice kept_;       // of it: the slice that stays in the caller's memory
  uint64_t staged_bytes_ = 0;  // progress of kStage and kUnstage
  RegionId written_by_peers_ = kPrivateRegion;
  int arrived_count_ = 0;   // ranks before this one have arrived
  int finished_count_ = 0;  // ranks before this one have finished
  uint64_t next_task_ = 0;  // of our own, where no other rank may do them
  TaskList tasks_;
  std::unique_ptr<Region> staging_;
  std::vector<std::byte> scratch_;
  std::vector<Reach> sources_;  // by rank
  std::vector<Reach> targets_;
  std::vector<const std::byte*> source_pointers_;  // of the current task
  std::vector<std::byte*> target_pointers_;
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_COLLECTIVE_H_
