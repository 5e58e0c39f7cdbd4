#include "comm/transport/shm/remote_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/sync.h"

namespace pelton::shm {
namespace {

absl::Status ReadError(pid_t pid, uint64_t address, int error) {
  const std::string text = absl::StrCat("reading memory of process ", pid, " at ",
                                        absl::Hex(address), ": ", std::strerror(error));
  if (error == EPERM || error == ENOSYS) return absl::PermissionDeniedError(text);
  if (error == ESRCH) return absl::UnavailableError(text);
  return absl::InternalError(text);
}

int YamaScope() {
  int scope = -1;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope;
}

bool UserPermits() {
  const char* const text = std::getenv("PELTON_PTRACE");
  return text == nullptr || absl::string_view(text) != "0";
}

// The kernel keeps one answer per process. Threads: any. Owns: what it was told last.
struct ProcessReaders {
  static ProcessReaders& Get() {
    static ProcessReaders* const process = new ProcessReaders;  // outlives every transport
    return *process;
  }
  Mutex mutex;
  Readers readers ABSL_GUARDED_BY(mutex){YamaScope(), UserPermits()};
};

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

std::optional<unsigned long> Readers::Admit(std::optional<pid_t> reader) {
  const unsigned long wanted = reader ? static_cast<unsigned long>(*reader) : kAnybody;
  if (!asks_ || answer_ == wanted || answer_ == kAnybody) return std::nullopt;
  answer_ = answer_ ? kAnybody : wanted;
  return answer_;
}

void AllowReaders(std::optional<pid_t> reader) {
  ProcessReaders& process = ProcessReaders::Get();
  MutexLock lock(&process.mutex);
  const std::optional<unsigned long> tracer = process.readers.Admit(reader);
  if (tracer) prctl(PR_SET_PTRACER, *tracer, 0, 0, 0);
}

}  // namespace pelton::shm
