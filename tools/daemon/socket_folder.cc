#include "tools/daemon/socket_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_limits.h"

namespace pelton {

namespace {

std::string FolderOf(const std::string& socket) {
  const size_t slash = socket.rfind('/');
  return slash == std::string::npos ? "." : socket.substr(0, slash);
}

// Of trainers: their stacks, and a lock by which one of a rank at a time looks for its daemon.
bool IsATrainers(const std::string& name) {
  return absl::StartsWith(name, "stack-") || absl::EndsWith(name, ".lock");
}

}  // namespace

absl::Status PrepareSocketFolder(const std::string& socket) {
  const std::string folder = FolderOf(socket);
  if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return absl::NotFoundError(absl::StrCat("--socket ", socket, ": ", ErrorText(errno)));
  }
  struct stat found;
  if (stat(folder.c_str(), &found) != 0) {
    return absl::NotFoundError(absl::StrCat("--socket ", socket, ": ", ErrorText(errno)));
  }
  if (found.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("--socket ", socket, ": its folder is user ",
                                                    found.st_uid, "'s; choose one of your own"));
  }
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("--socket ", socket, ": others may enter its folder; chmod 700 ", folder));
  }
  return absl::OkStatus();
}

void RemoveSocketFolder(const std::string& socket) {
  const std::filesystem::path folder = FolderOf(socket);
  std::error_code error;
  for (const std::filesystem::directory_entry& entry :
       std::filesystem::directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error) || !IsATrainers(entry.path().filename())) return;
  }
  if (!error) std::filesystem::remove_all(folder, error);
}

}  // namespace pelton
