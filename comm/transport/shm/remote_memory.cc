#include "comm/transport/shm/remote_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace pelton::shm {
namespace {

absl::Status ReadError(pid_t pid, uint64_t address, int error) {
  const std::string text = absl::StrCat("reading memory of process ", pid, " at ",
                                        absl::Hex(address), ": ", std::strerror(error));
  if (error == EPERM || error == ENOSYS) return absl::PermissionDeniedError(text);
  if (error == ESRCH) return absl::UnavailableError(text);
  return absl::InternalError(text);
}

}  // namespace

absl::Status ReadMemory(pid_t pid, uint64_t address, std::byte* target, size_t size_bytes) {
  if (pid == getpid()) {
    std::memcpy(target, reinterpret_cast<const void*>(static_cast<uintptr_t>(address)), size_bytes);
    return absl::OkStatus();
  }
  while (size_bytes > 0) {
    const iovec local{target, size_bytes};
    const iovec remote{reinterpret_cast<void*>(static_cast<uintptr_t>(address)), size_bytes};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return ReadError(pid, address, got < 0 ? errno : EFAULT);
    target += got;
    address += static_cast<uint64_t>(got);
    size_bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

void AllowReaders() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  if (scope == 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

}  // namespace pelton::shm
