// Which recipe runs a collective: a table by kind, world size and bytes.
#ifndef PELTON_COMM_COLLECTIVES_SELECTION_H_
#define PELTON_COMM_COLLECTIVES_SELECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/collectives/recipe.h"

namespace pelton {

// The first row that fits is taken. Threads: a value. Owns: its name.
struct SelectionRow {
  OperationKind kind = OperationKind::kAllReduce;
  int32_t max_world_size = 0;  // inclusive; 0: any
  uint64_t max_bytes = 0;      // of the operation's count, inclusive; 0: any
  std::string recipe;
};

// Threads: immutable once made. Owns: its rows.
class SelectionTable {
 public:
  // What serves without having measured.
  static SelectionTable Default();
  // One row a line, "allreduce 8 65536 ring"; `#` begins a comment. The default's rows follow, for
  // what none of them fits. Errors: InvalidArgument: names the line and what is wrong in it.
  static absl::StatusOr<SelectionTable> Parse(absl::string_view text);

  // The recipe for `shape`: that of the first row that fits and whose recipe supports it and
  // rounds as the dtype needs; where there is no such row, the first such recipe by name. Errors:
  // Unimplemented: none does.
  absl::StatusOr<RecipeRegistry::Entry> Select(const ProgramShape& shape) const;

 private:
  std::vector<SelectionRow> rows_;
};

// Names of the recipes that can run the collective of that name with float32 sums, sorted.
// Errors: InvalidArgument: there is no such collective.
absl::StatusOr<std::vector<std::string>> RecipesFor(absl::string_view kind, int32_t world_size);

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_SELECTION_H_
