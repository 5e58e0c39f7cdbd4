#include "comm/collectives/selection.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/pipeline/operation.h"

namespace pelton {
namespace {

// By judgement: few ranks and few bytes go for steps, many bytes for bytes on the wire, and where
// both will do for the sum in rank order.
constexpr absl::string_view kDefaultRows = R"(
barrier        1     0       alone
barrier        0     0       dissemination
allreduce      1     0       alone
allreduce      8     4096    direct
allreduce      0     32768   recursive_doubling
allreduce      16    0       pairwise
allreduce      0     1048576 halving_doubling
allreduce      0     0       ring
allreduce      0     0       pairwise
reduce         1     0       alone
reduce         0     32768   tree
reduce         0     0       pairwise
broadcast      1     0       alone
broadcast      0     65536   tree
broadcast      0     0       pairwise
reduce_scatter 1     0       alone
reduce_scatter 16    0       pairwise
reduce_scatter 0     4096    halving_doubling
reduce_scatter 0     0       ring
reduce_scatter 0     0       pairwise
allgather      1     0       alone
allgather      16    0       pairwise
allgather      0     4096    halving_doubling
allgather      0     0       ring
gather         1     0       alone
gather         0     4096    tree
gather         0     0       pairwise
scatter        1     0       alone
scatter        0     4096    tree
scatter        0     0       pairwise
alltoall       1     0       alone
alltoall       0     0       pairwise
)";

// Whether elements lose bits with each step that adds or multiplies them (SUM-1b).
bool NeedsOneRounding(const ProgramShape& shape) {
  const bool is_short = shape.dtype == DType::kFloat16 || shape.dtype == DType::kBFloat16;
  return Reduces(shape.kind) && is_short && shape.reduce_op != ReduceOp::kMin &&
         shape.reduce_op != ReduceOp::kMax;
}

bool CanRun(const RecipeTraits& recipe, const ProgramShape& shape) {
  return recipe.supports(shape) && (recipe.rounds_once || !NeedsOneRounding(shape));
}

bool Fits(const SelectionRow& row, const ProgramShape& shape) {
  const uint64_t size = SizeOf(shape.dtype);
  return row.kind == shape.kind &&
         (row.max_world_size == 0 || shape.world_size <= row.max_world_size) &&
         (row.max_bytes == 0 || shape.count <= row.max_bytes / size);
}

absl::StatusOr<OperationKind> ParseKind(absl::string_view name) {
  for (const OperationTraits& traits : kOperationTraits) {
    if (traits.name == name && traits.scope == KindScope::kCollective) return traits.kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no collective; the first field names one, as allreduce does"));
}

absl::StatusOr<SelectionRow> ParseRow(absl::string_view line) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (fields.size() != 4) {
    return absl::InvalidArgumentError(

        absl::StrCat("has ", fields.size(), " fields and not 4: '", line,
                     "'; write collective, largest world size, largest count of bytes, recipe"));
  }
  SelectionRow row;
  ASSIGN_OR_RETURN(row.kind, ParseKind(fields[0]));
  if (!absl::SimpleAtoi(fields[1], &row.max_world_size) || row.max_world_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("largest world size is '", fields[1],
                     "', must be a whole number from 0 on; 0 stands for any"));
  }
  if (!absl::SimpleAtoi(fields[2], &row.max_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("largest count of bytes is '", fields[2],
                     "', must be a whole number from 0 on; 0 stands for any"));
  }
  row.recipe = std::string(fields[3]);
  const absl::Status found = RecipeRegistry::Get().Find(row.recipe).status();
  if (!found.ok()) return absl::InvalidArgumentError(absl::StrCat("recipe: ", found.message()));
  return row;
}

absl::StatusOr<std::vector<SelectionRow>> ParseRows(absl::string_view text) {
  std::vector<SelectionRow> rows;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<SelectionRow> row = ParseRow(line);
    if (!row.ok()) return Annotate(row.status(), absl::StrCat("line ", number));
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace

SelectionTable SelectionTable::Default() {
  const auto rows = ParseRows(kDefaultRows);
  PELTON_CHECK(rows.ok()) << rows.status();
  SelectionTable table;
  table.rows_ = *rows;
  return table;
}

absl::StatusOr<SelectionTable> SelectionTable::Parse(absl::string_view text) {
  SelectionTable table;
  ASSIGN_OR_RETURN(table.rows_, ParseRows(text));
  std::vector<SelectionRow> others = Default().rows_;
  std::move(others.begin(), others.end(), std::back_inserter(table.rows_));
  return table;
}

absl::StatusOr<RecipeRegistry::Entry> SelectionTable::Select(const ProgramShape& shape) const {
  for (const SelectionRow& row : rows_) {
    if (!Fits(row, shape)) continue;
    ASSIGN_OR_RETURN(RecipeRegistry::Entry entry, RecipeRegistry::Get().Find(row.recipe));
    if (CanRun(entry.factory, shape)) return entry;
  }
  // No row: of a kind that nobody has judged yet, for instance.
  for (const RecipeRegistry::Entry& entry : RecipeRegistry::Get().List()) {
    if (CanRun(entry.factory, shape)) return entry;
  }
  return absl::UnimplementedError(absl::StrCat("no recipe for ", NameOf(shape.kind), " of ",
                                               NameOf(shape.dtype), " on ", shape.world_size,
                                               " ranks"));
}

absl::StatusOr<std::vector<std::string>> RecipesFor(absl::string_view kind, int32_t world_size) {
  ProgramShape shape;
  ASSIGN_OR_RETURN(shape.kind, ParseKind(kind));
  shape.world_size = world_size;
  shape.count = static_cast<uint64_t>(world_size);  // whatever needs an element for each rank
  std::vector<std::string> names;
  for (const RecipeRegistry::Entry& entry : RecipeRegistry::Get().List()) {
    if (entry.factory.supports(shape)) names.push_back(entry.name);
  }
  return names;
}

}  // namespace pelton
