#include "core/pipeline/weight_table.h"

#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/sharing.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Never destroyed: tables may die after it would.
WeakTable<const WeightTable>& Tables() {
  static auto* const tables = new WeakTable<const WeightTable>();
  return *tables;
}

absl::Status CheckNeighbors(absl::string_view name, const std::vector<Neighbor>& neighbors) {
  for (size_t i = 0; i < neighbors.size(); ++i) {
    const auto [rank, weight] = neighbors[i];
    if (rank.value() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", rank.value(), " is no rank; ranks count from 0"));
    }
    if (i > 0 && neighbors[i - 1].rank >= rank) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": rank ", rank.value(), " comes after rank ",
                       neighbors[i - 1].rank.value(), "; give each once, ascending"));
    }
    if (!std::isfinite(weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the weight of rank ", rank.value(), " is ", weight));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const WeightTable>> WeightTable::Create(Neighborhood neighborhood,
                                                                       Form form) {
  RETURN_IF_ERROR(CheckNeighbors("sources", neighborhood.sources));
  RETURN_IF_ERROR(CheckNeighbors("destinations", neighborhood.destinations));
  if (!std::isfinite(neighborhood.own)) {
    return absl::InvalidArgumentError(absl::StrCat("own: the weight is ", neighborhood.own));
  }
  const size_t sources = neighborhood.sources.size();
  if (!form.source_counts.empty() && form.source_counts.size() != sources) {
    return absl::InvalidArgumentError(absl::StrCat("source_counts: ", form.source_counts.size(),
                                                   " counts for ", sources, " sources"));
  }
  std::shared_ptr<const WeightTable> table(
      new WeightTable(std::move(neighborhood), std::move(form), Tables().NextId()));
  Tables().Enter(table->id(), table);
  return table;
}

std::shared_ptr<const WeightTable> WeightTable::Find(int32_t id) { return Tables().Find(id); }

WeightTable::~WeightTable() { Tables().Remove(id_); }

uint64_t WeightTable::TotalCount(uint64_t count) const {
  const std::vector<uint64_t>& counts = form_.source_counts;
  if (counts.empty()) return count * sources().size();
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

}  // namespace pelton
