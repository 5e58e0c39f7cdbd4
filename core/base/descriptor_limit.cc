#include "core/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

}  // namespace pelton
