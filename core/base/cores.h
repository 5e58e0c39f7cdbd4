// How many cores this process has.
#ifndef PELTON_CORE_BASE_CORES_H_
#define PELTON_CORE_BASE_CORES_H_

#include <optional>
#include <string>

namespace pelton {

// By the affinity mask, and by the quota of the control group where that is less; at least 1. A
// container's limit is such a quota: its mask shows all cores of the machine.
// Threads: any. Blocks: reads some files.
int UsableCores();

// The least quota of the group at `path` ("/a/b") and of those above it, in a hierarchy (version 2)
// that is mounted at `root`; nothing if no group has one. Units: whole cores, at least 1.
std::optional<int> CoresOfQuota(const std::string& root, const std::string& path);

}  // namespace pelton

#endif  // PELTON_CORE_BASE_CORES_H_
