// Programs of shapes that come again.
#ifndef PELTON_COMM_COLLECTIVES_PROGRAM_CACHE_H_
#define PELTON_COMM_COLLECTIVES_PROGRAM_CACHE_H_

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "comm/collectives/selection.h"
#include "core/base/status.h"

namespace pelton {

// Threads: one at a time. Owns: the table and, with those who run them, the programs.
class ProgramCache {
 public:
  explicit ProgramCache(SelectionTable table) : table_(std::move(table)) {}

  // Shared: the cache may forget a program that is still to run.
  using Pointer = std::shared_ptr<const Program>;
  // The program that the table selects. Errors: those of Select.
  absl::StatusOr<Pointer> Get(const ProgramShape& shape) {
    if (const auto found = programs_.find(shape); found != programs_.end()) return found->second;
    ASSIGN_OR_RETURN(const ScheduleRegistry::Entry entry, table_.Select(shape));
    if (programs_.size() >= kMaxPrograms) programs_.clear();
    auto program = std::make_shared<const Program>(entry.factory.make(shape));
    programs_.emplace(shape, program);
    return program;
  }

 private:
  // A training step has some tens of shapes.
  static constexpr size_t kMaxPrograms = 256;

  const SelectionTable table_;
  absl::flat_hash_map<ProgramShape, Pointer> programs_;
};

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_PROGRAM_CACHE_H_
