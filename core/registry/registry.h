// Names for interchangeable parts: algorithms, transports, codecs. The one kind of global there is.
#ifndef PELTON_CORE_REGISTRY_REGISTRY_H_
#define PELTON_CORE_REGISTRY_REGISTRY_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/check.h"
#include "core/base/sync.h"

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
    MutexLock lock(&mutex_);
    const bool is_new = entries_.try_emplace(name, Entry{name, std::move(summary), factory}).second;
    PELTON_CHECK(is_new) << "'" << name << "' is registered twice";
    return true;
  }

  // Errors: NotFound: lists the names there are.
  absl::StatusOr<Entry> Find(const std::string& name) const {
    MutexLock lock(&mutex_);
    auto found = entries_.find(name);
    if (found == entries_.end()) {
      return absl::NotFoundError(
          absl::StrCat("'", name, "' is not registered; there are: ", Listed()));
    }
    return found->second;
  }

  // All entries, sorted by name.
  std::vector<Entry> List() const {
    MutexLock lock(&mutex_);
    std::vector<Entry> entries;
    for (const auto& [name, entry] : entries_) entries.push_back(entry);
    return entries;
  }

 private:
  std::string Listed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return absl::StrJoin(entries_, ", ", [](std::string* out, const auto& named) {
      absl::StrAppend(out, named.first);
    });
  }

  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_REGISTRY_REGISTRY_H_
