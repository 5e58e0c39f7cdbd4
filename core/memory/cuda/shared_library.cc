#include "core/memory/cuda/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace pelton {
namespace {

constexpr int kPrivate = RTLD_NOW | RTLD_LOCAL;

std::string PathOf(void* handle, const std::string& name) {
  link_map* map = nullptr;
  const bool known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  return known ? map->l_name : name;
}

}  // namespace

absl::StatusOr<SharedLibrary> SharedLibrary::Find(const LibrarySearch& search) {
  std::string tried;
  void* handle = nullptr;
  auto found = [&](const std::string& name, int flags) {
    handle = dlopen(name.c_str(), flags);
    if (handle == nullptr && (flags & RTLD_NOLOAD) == 0) absl::StrAppend(&tried, "; ", dlerror());
    return handle != nullptr;
  };
  if (!search.path.empty()) {
    if (found(search.path, kPrivate)) return SharedLibrary(handle, PathOf(handle, search.path));
    return absl::NotFoundError(absl::StrCat("library '", search.path, "'", tried));
  }
  const char* named = std::getenv(search.variable.c_str());
  if (named != nullptr && *named != '\0') {
    if (found(named, kPrivate)) return SharedLibrary(handle, PathOf(handle, named));
    return absl::NotFoundError(absl::StrCat(search.variable, "='", named, "'", tried));
  }
  for (const std::string& name : search.sonames) {
    if (found(name, kPrivate | RTLD_NOLOAD)) return SharedLibrary(handle, PathOf(handle, name));
  }
  for (const std::string& name : search.sonames) {
    if (found(name, kPrivate)) return SharedLibrary(handle, PathOf(handle, name));
  }
  return absl::NotFoundError(
      absl::StrCat("none is in the process, ", search.variable, " is not set", tried));
}

void* SharedLibrary::Symbol(const char* name) const { return dlsym(handle_, name); }

absl::Status SharedLibrary::Lacks(const char* name) const {
  return absl::UnimplementedError(absl::StrCat("library ", path_, " has no ", name));
}

}  // namespace pelton
