// A staged collective under way on one rank.
#ifndef PELTON_COMM_HIERARCHY_STAGED_RUN_H_
#define PELTON_COMM_HIERARCHY_STAGED_RUN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/collectives/program_run.h"
#include "comm/hierarchy/layout.h"
#include "comm/hierarchy/stages.h"
#include "comm/hierarchy/wires.h"
#include "comm/transport/operation_check.h"
#include "core/memory/region.h"

namespace pelton::hierarchy {

// Runs one collective after another. While the messages of one stage travel, the next stage's steps
// inside the host go on: a host launches its steps in the order up 0, up 1, down 0, up 2, down 1,
// ..., the same on all of its ranks (ORDER-1), and has the messages of two stages under way.
// Threads: those of the wires' Launch. Owns: its scratch memory; the wires outlive it.
class StagedRun {
 public:
  StagedRun(Wires& wires, const Layout& layout, int32_t rank);
  ~StagedRun();
  StagedRun(const StagedRun&) = delete;
  StagedRun& operator=(const StagedRun&) = delete;

  // Begins. Blocks: never. Errors: ResourceExhausted: no scratch memory.
  absl::Status Start(StagedCollective collective, const Operation& operation,
                     const OperationMemory& memory);
  // Does a bounded amount of work; true once done. Blocks: never. Errors: those of the steps and
  // messages; the wires may then hold its memory until they are aborted and idle.
  absl::StatusOr<bool> Advance();
  bool moved() const { return moved_; }  // whether the last Advance moved anything

 private:
  struct Batch {
    size_t stage = 0;
    bool is_down = false;
  };
  struct Flight {
    Completion completion;
    size_t stage = 0;
    bool is_up = false;
  };
  // A stage's messages begin once its steps up are done, and its steps down once the messages are.
  struct Progress {
    size_t up_left = 0;
    bool messages_began = false;
    bool messages_done = false;
  };

  absl::Status ReserveScratch(uint64_t size_bytes);
  absl::Status PollSteps();
  absl::Status AdvanceMessages();
  absl::Status StartMessages(size_t stage);
  absl::Status LaunchSteps();
  absl::StatusOr<bool> LaunchBatch(const Batch& batch);
  absl::Status LaunchStep(const InsideStep& step, Flight flight);
  void CopyOwnPart(const Stage& stage) const;
  Location LocationOf(const Piece& piece) const;
  std::byte* AddressOf(const Piece& piece) const;
  const std::vector<InsideStep>& StepsOf(const Batch& batch) const;

  Wires& wires_;
  const Layout& layout_;
  const int32_t rank_;
  std::unique_ptr<Region> scratch_;
  std::array<ProgramRun, 2> messages_;  // stage s in s % 2
  StagedCollective collective_;
  Operation operation_;
  OperationMemory memory_;
  std::vector<Batch> batches_;
  size_t next_batch_ = 0;
  size_t next_step_ = 0;  // of that batch
  std::vector<Progress> progress_;
  size_t oldest_messages_ = 0;  // the first stage whose messages are not done
  std::vector<Flight> in_flight_;
  bool moved_ = false;
};

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_STAGED_RUN_H_
