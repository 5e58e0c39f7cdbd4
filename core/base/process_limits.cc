#include "core/base/process_limits.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace pelton {

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, kMostDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string ErrorText(int error) {
  const std::string text = std::strerror(error);
  if (error == ENFILE) {
    return absl::StrCat(text, " on this host (see /proc/sys/fs/file-max)");
  }
  if (error != EMFILE) return text;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::StrCat(
      text, " (this process may have ", limit.rlim_cur,
      ", RLIMIT_NOFILE; raise the hard limit, `ulimit -Hn`, or close what is open)");
}

bool IsExhaustion(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

absl::Status SystemError(absl::string_view call) {
  const std::string text = absl::StrCat(call, ": ", ErrorText(errno));
  return IsExhaustion(errno) ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

namespace {

constexpr char kHierarchy[] = "/sys/fs/cgroup";

int CoresOfMask() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

// "150000 100000": microseconds of work in so many of time; "max 100000": no quota.
std::optional<int> QuotaIn(const std::string& file) {
  std::ifstream text(file);
  double quota = 0;
  double period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return std::max(1, static_cast<int>(quota / period));
}

// "0::/a/b" is the line of the hierarchy of version 2.
std::string GroupOfThisProcess() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  }
  return "/";
}

}  // namespace

std::optional<int> CoresOfQuota(const std::string& root, const std::string& path) {
  std::optional<int> least;
  std::string group = path;
  while (true) {
    const std::optional<int> quota = QuotaIn(root + group + "/cpu.max");
    if (quota.has_value()) least = std::min(*quota, least.value_or(*quota));
    if (group.empty()) return least;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

int UsableCores() {
  const int cores = CoresOfMask();
  return std::min(cores, CoresOfQuota(kHierarchy, GroupOfThisProcess()).value_or(cores));
}

}  // namespace pelton
