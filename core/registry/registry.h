// Names for interchangeable parts: algorithms, transports, codecs. The one kind of global there is.
#ifndef PELTON_CORE_REGISTRY_REGISTRY_H_
#define PELTON_CORE_REGISTRY_REGISTRY_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/check.h"
#include "core/base/sharing.h"

namespace pelton {

// The parts of one kind, by name; filled by registration lines before main.
// Threads: any. Owns: the entries.
template <typename Factory>
class Registry {
 public:
  struct Entry {
    std::string name;
    std::string summary;
    Factory factory;
  };

  static Registry& Get() {
    static Registry* const registry = new Registry;  // outlives every user
    return *registry;
  }

  // Returns true, for use in a static initialiser. A name taken twice is a bug and ends the
  // process.
  bool Register(std::string name, std::string summary, Factory factory) {
    const bool is_new = entries_.Enter(name, Entry{name, std::move(summary), factory});
    PELTON_CHECK(is_new) << "'" << name << "' is registered twice";
    return true;
  }

  // Errors: NotFound: lists the names there are.
  absl::StatusOr<Entry> Find(const std::string& name) const {
    if (std::optional<Entry> found = entries_.Find(name)) return *std::move(found);
    return absl::NotFoundError(
        absl::StrCat("'", name, "' is not registered; there are: ",
                     absl::StrJoin(List(), ", ", [](std::string* out, const Entry& entry) {
                       absl::StrAppend(out, entry.name);
                     })));
  }

  // All entries, sorted by name.
  std::vector<Entry> List() const { return entries_.All(); }

 private:
  SharedTable<std::string, Entry> entries_;
};

}  // namespace pelton

#endif  // PELTON_CORE_REGISTRY_REGISTRY_H_
