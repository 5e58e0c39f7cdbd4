#include "comm/transport/ucx/ucx_library.h"

#include <cstdlib>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::ucx {
namespace {

// The loader also searches libucs and libucm, because libucp depends on them.
absl::Status Bind(const SharedLibrary& library, const char* name, void** function) {
  return Annotate(library.Bind(name, *function), "Pelton needs UCX 1.13 or newer");
}

// UCX patches mmap and its kind for the whole process while it is being loaded, unless its variable
// forbids that. The variable is gone again afterwards, so that no child inherits it.
absl::StatusOr<SharedLibrary> FindWithoutHooks(const LibrarySearch& search) {
  constexpr char kMemoryEvents[] = "UCX_MEM_EVENTS";
  if (std::getenv(kMemoryEvents) != nullptr) return SharedLibrary::Find(search);
  setenv(kMemoryEvents, "n", /*overwrite=*/0);
  absl::StatusOr<SharedLibrary> library = SharedLibrary::Find(search);
  unsetenv(kMemoryEvents);
  return library;
}

absl::StatusOr<UcxLibrary> Load() {
  absl::StatusOr<SharedLibrary> library =
      FindWithoutHooks({"", {"libucp.so.0"}, "PELTON_UCX_LIBRARY"});
  if (!library.ok()) {
    return Annotate(library.status(),
                    "wire 'ucx' needs UCX (Debian: apt-get install libucx0, or set "
                    "PELTON_UCX_LIBRARY to a libucp.so.0)");
  }
  UcxLibrary table;
#define PELTON_UCX_BIND(name) \
  RETURN_IF_ERROR(Bind(*library, #name, reinterpret_cast<void**>(&table.name)));
  PELTON_UCX_FUNCTIONS(PELTON_UCX_BIND)
  PELTON_UCX_BIND(ucm_global_opts)
#undef PELTON_UCX_BIND
  return table;
}

const absl::StatusOr<UcxLibrary>& Loaded() {
  static const auto& library = *new absl::StatusOr<UcxLibrary>(Load());
  return library;
}

}  // namespace

absl::Status LoadUcx() { return Loaded().status(); }

const UcxLibrary& Ucx() {
  PELTON_CHECK_OK(Loaded().status());
  return *Loaded();
}

}  // namespace pelton::ucx
