// Reading the private memory of another process.
#ifndef PELTON_COMM_TRANSPORT_SHM_REMOTE_MEMORY_H_
#define PELTON_COMM_TRANSPORT_SHM_REMOTE_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace pelton::shm {

// Copies `size_bytes` at `address` of process `pid` to `target`; plain memory of this process if
// `pid` is its own. Blocks: while the kernel copies. Errors: PermissionDenied: the kernel forbids
// it; Unavailable: the process is gone; Internal: it has no such memory.
absl::Status ReadMemory(pid_t pid, uint64_t address, std::byte* target, size_t size_bytes);

// Lets other processes of this user read our memory where Yama's default (ptrace_scope 1) forbids
// it; does nothing elsewhere.
void AllowReaders();

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_REMOTE_MEMORY_H_
