// A library that is looked up when it is needed, because a machine may not have it.
#ifndef PELTON_CORE_MEMORY_CUDA_SHARED_LIBRARY_H_
#define PELTON_CORE_MEMORY_CUDA_SHARED_LIBRARY_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pelton {

// Threads: a value. Owns: its strings.
struct LibrarySearch {
  std::string path;                  // when given, this one and no other
  std::vector<std::string> sonames;  // tried in order
  std::string variable;              // of the environment; may hold a path
};

// Of this project's kernels; `path` as above.
inline LibrarySearch KernelsSearch(std::string path) {
  return {std::move(path), {"libpelton_kernels.so"}, "PELTON_KERNELS_LIBRARY"};
}

// Never unloaded: what is called here has threads of its own that outlive us.
// Threads: immutable once made. Owns: nothing.
class SharedLibrary {
 public:
  // The one at `search.path`; else the one that the variable names; else one that is in the process
  // already, so that there is no second copy beside PyTorch's unless somebody wants it; else by
  // name. Errors: NotFound: names all that was tried, with the loader's words.
  static absl::StatusOr<SharedLibrary> Find(const LibrarySearch& search);

  // Null if it has none of that name.
  void* Symbol(const char* name) const;
  // Points `function` at the one of that name, which must have its type. Errors: Unimplemented: the
  // library has none; names both.
  template <typename Function>
  absl::Status Bind(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(Symbol(name));
    return function != nullptr ? absl::OkStatus() : Lacks(name);
  }
  // Where it was loaded from.
  const std::string& path() const { return path_; }

 private:
  absl::Status Lacks(const char* name) const;

  SharedLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  void* handle_;
  std::string path_;
};

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_CUDA_SHARED_LIBRARY_H_
