// Copies memory beside what its caller goes on with.
#ifndef PELTON_CORE_MEMORY_COPY_BESIDE_H_
#define PELTON_CORE_MEMORY_COPY_BESIDE_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/actor/actor_ref.h"
#include "core/actor/thread_executor.h"
#include "core/actor/waker.h"

namespace pelton {

class CopyingActor;

// Makes one copy at a time, on a thread of its own and on the thread that waits for the copy. The
// waiting thread copies as well, so that it waits for one piece at most when the other thread gets
// no core.
//
// Code that writes to a source before the copy is through may leave a mixture in the copy.
// FindChanged finds such a write if it reached one of the places that Begin has looked at, 64 bytes
// of every 64 KiB. Threads: one at a time, beside its own. Owns: its thread; borrows the memory,
// from Begin until Wait, or Abandon, has returned.
class CopyBeside {
 public:
  struct Part {
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    size_t size_bytes = 0;
  };

  CopyBeside();
  // Abandons.
  ~CopyBeside();
  CopyBeside(const CopyBeside&) = delete;
  CopyBeside& operator=(const CopyBeside&) = delete;

  // Begins to copy `parts`, which do not overlap; an earlier copy is abandoned. Blocks: never.
  // Errors: those of CopyingActor's mailbox; then the thread that waits copies all of it.
  absl::Status Begin(std::vector<Part> parts);
  // Whether all is copied; true as well where nothing was begun. Blocks: never.
  bool is_copied() const;
  // Until it is. Blocks: until `deadline`. Errors: DeadlineExceeded: how much was copied.
  absl::Status Wait(absl::Time deadline);
  // Once it is: the first part whose copy is not what its source was at Begin. Nothing: there is
  // none, as far as that can be told.
  std::optional<size_t> FindChanged() const;
  // Gives up what is not copied, and lets go of the memory. Blocks: while a piece is being copied.
  void Abandon();

 private:
  friend class CopyingActor;

  // What the own thread and the waiting thread work on together.
  struct Job;
  // Threads: a value. Owns: nothing.
  struct Sample {
    size_t part;
    size_t offset;
    size_t size_bytes;
    size_t at;  // in samples_
  };

  void TakeSamples();

  std::vector<Part> parts_;
  std::vector<Sample> places_;
  std::vector<std::byte> samples_;
  std::shared_ptr<Job> job_;  // shared: the thread may hold it when it is over
  Waker waker_;               // on which the waiting thread sleeps
  ThreadExecutor executor_;
  ActorRef<CopyingActor> actor_;
};

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_COPY_BESIDE_H_
