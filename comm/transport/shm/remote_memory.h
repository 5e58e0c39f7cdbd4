// Reading the private memory of another process.
#ifndef PELTON_COMM_TRANSPORT_SHM_REMOTE_MEMORY_H_
#define PELTON_COMM_TRANSPORT_SHM_REMOTE_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace pelton::shm {

// Copies `size_bytes` at `address` of process `pid` to `target`; plain memory of this process if
// `pid` is its own. Blocks: while the kernel copies. Errors: PermissionDenied: the kernel forbids
// it; Unavailable: the process is gone; Internal: it has no such memory.
absl::Status ReadMemory(pid_t pid, uint64_t address, std::byte* target, size_t size_bytes);

// Whom Yama's default (ptrace_scope 1), which lets only parents read, is to let read this process's
// memory besides. It keeps one answer: nobody, one process, or every process of this user.
// Threads: one at a time. Owns: what it has answered.
class Readers {
 public:
  static constexpr unsigned long kAnybody = ~0UL;  // PR_SET_PTRACER_ANY

  // `scope`: the system's ptrace_scope, or -1 where there is no Yama. `is_permitted`: whether the
  // user lets us ask for anything.
  Readers(int scope, bool is_permitted) : asks_(scope == 1 && is_permitted) {}

  // What PR_SET_PTRACER must be set to so that `reader` may read, too (none: every process);
  // nothing if it has to stay as it is. The kernel keeps one process only.
  std::optional<unsigned long> Admit(std::optional<pid_t> reader);

 private:
  const bool asks_;
  std::optional<unsigned long> answer_;
};

// Lets `reader`, or without one every process of this user, read our memory where Yama's default
// forbids it; does nothing elsewhere, or where PELTON_PTRACE=0 forbids it. Threads: any.
void AllowReaders(std::optional<pid_t> reader = std::nullopt);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_REMOTE_MEMORY_H_
