// What this process may use: files, sockets and shared memory, and cores.
#ifndef PELTON_CORE_BASE_PROCESS_LIMITS_H_
#define PELTON_CORE_BASE_PROCESS_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pelton {

// Descriptors that RaiseDescriptorLimit asks for at most: programs that close all possible ones
// before an exec would else take seconds for it.
inline constexpr uint64_t kMostDescriptors = 65536;

// Raises the soft limit to the hard one, as far as that is not above kMostDescriptors: every two
// ranks have connections of their own, and the usual soft limit of 1024 is met at some hundred
// ranks. Nothing happens where that is not permitted. Threads: any. Blocks: never.
void RaiseDescriptorLimit();

// The kernel's words for `error` (an errno), and for want of descriptors also the limit and what to
// do. Threads: any.
std::string ErrorText(int error);

// Whether `error` says that this process, or this host, has no descriptor or memory left: not the
// fault of the peer that was to get it.
bool IsExhaustion(int error);
// What errno says after `call` has failed: ResourceExhausted where the kernel lacked something, and
// Unavailable for all else. The text begins with `call`.
absl::Status SystemError(absl::string_view call);

// By the affinity mask, and by the quota of the control group where that is less; at least 1. A
// container's limit is such a quota: its mask shows all cores of the machine.
// Threads: any. Blocks: reads some files.
int UsableCores();

// The least quota of the group at `path` ("/a/b") and of those above it, in a hierarchy (version 2)
// that is mounted at `root`; nothing if no group has one. Units: whole cores, at least 1.
std::optional<int> CoresOfQuota(const std::string& root, const std::string& path);

}  // namespace pelton

#endif  // PELTON_CORE_BASE_PROCESS_LIMITS_H_
