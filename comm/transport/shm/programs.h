// Collectives that shared memory has no tasks for (task_list.h), as programs over a communicator's
// own sends and receives.
#ifndef PELTON_COMM_TRANSPORT_SHM_PROGRAMS_H_
#define PELTON_COMM_TRANSPORT_SHM_PROGRAMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collectives/program_communicator.h"
#include "comm/collectives/program_run.h"
#include "comm/tags.h"
#include "comm/transport/shm/context.h"
#include "comm/transport/shm/point_to_point.h"
#include "core/pipeline/operation.h"

namespace pelton::shm {

// The messages of programs have tags and tickets of their own, so that they meet none of the
// users'.
static_assert(kFirstTransportProgramTag + kMaxProgramStrands - 1 <= kLastCollectiveTag);
constexpr bool IsTagOfPrograms(int32_t tag) {
  return tag >= kFirstTransportProgramTag && tag <= kLastCollectiveTag;
}
constexpr uint64_t kIsMessageOfProgram = uint64_t{1} << 63;  // in a ticket of PointToPoint

// The sends and receives, as a program's runner. Whoever drives the communicator drives them, too.
// Threads: one. Owns: their tickets.
class ProgramMessages final : public OperationRunner {
 public:
  ProgramMessages(const Context& context, PointToPoint& point_to_point)
      : context_(context), point_to_point_(point_to_point) {}

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  State Query(Completion completion) override { return completions_.Query(completion); }
  // `ticket` is that of a message that has ended, as PointToPoint gives it.
  void End(uint64_t ticket, const absl::Status& status) {
    completions_.End(ticket & ~kIsMessageOfProgram, status);
  }

  // A ProgramRun calls none of these.
  bool Progress() override { return false; }
  void Park(absl::Time until) override {}
  void Wake() override {}
  void Abort(const absl::Status& reason) override {}
  std::vector<Rank> Missing() const override { return {}; }

 private:
  const Context& context_;
  PointToPoint& point_to_point_;
  CompletionTable completions_;
};

// One program at a time. The ranks have found out before that they launched the same operation.
// Threads: one. Owns: the programs and their scratch memory.
class Programs {
 public:
  Programs(const Context& context, PointToPoint& point_to_point)
      : context_(context), messages_(context, point_to_point), run_(messages_) {}

  // Errors: Unimplemented: no recipe runs `operation`.
  absl::Status Check(const Operation& operation);
  // Requires: Check. Errors: ResourceExhausted: no scratch memory.
  absl::Status Start(const Operation& operation, std::byte* source, std::byte* target);
  // As ProgramRun::Advance. Errors end the communicator.
  absl::StatusOr<bool> Advance();
  bool moved() const { return run_.moved(); }
  ProgramMessages& messages() { return messages_; }

 private:
  absl::StatusOr<ProgramCache::Pointer> Find(const Operation& operation);

  const Context& context_;
  // The ranks of a host have no table of their own: it is measured between hosts.
  ProgramCache cache_{SelectionTable::Default()};
  ProgramMessages messages_;
  ProgramCache::Pointer program_;  // of the one under way, or of the last one
  ProgramRun run_;
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_PROGRAMS_H_
