// With whom a rank averages and by which weights, under a number that an operation can name.
#ifndef PELTON_CORE_PIPELINE_WEIGHT_TABLE_H_
#define PELTON_CORE_PIPELINE_WEIGHT_TABLE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace pelton {

// Another rank, at one end of an edge. Threads: a value.
struct Neighbor {
  Rank rank;
  double weight;

  friend bool operator==(const Neighbor&, const Neighbor&) = default;
};

// What one rank does in a round: x becomes own * x + the sum over its sources of weight * theirs.
// Threads: a value. Owns: its lists.
struct Neighborhood {
  double own = 1;
  std::vector<Neighbor> sources = {};       // by rank, ascending
  std::vector<Neighbor> destinations = {};  // by rank, ascending; with the weight that each takes

  friend bool operator==(const Neighborhood&, const Neighborhood&) = default;
};

// A neighbourhood in the process's table: Operation::peer of a neighbour operation is its id. Made
// and dropped without a word to any other rank. Threads: immutable. Owns: its lists.
class WeightTable {
 public:
  // What else a table says. Threads: a value. Owns: its list.
  struct Form {
    // The weights of the destinations travel with the messages, and the receiver multiplies them
    // in, on top of its own: x becomes own * x + sum of weight * (theirs for this rank) * x_j. Both
    // ends of an edge say so, or none. Else destinations' weights mean nothing.
    bool sends_weights = false;
    // Of kNeighborAllGather: elements that each source sends, in the order of the sources. Empty:
    // as many as this rank.
    std::vector<uint64_t> source_counts = {};
  };

  // Shared: an operation in flight keeps its table. Errors: InvalidArgument: a rank is negative or
  // given twice, a list is not ascending, a weight is not finite, a count is missing; each named.
  static absl::StatusOr<std::shared_ptr<const WeightTable>> Create(Neighborhood neighborhood,
                                                                   Form form);
  static absl::StatusOr<std::shared_ptr<const WeightTable>> Create(Neighborhood neighborhood) {
    return Create(std::move(neighborhood), Form());
  }
  // The living table of that id, or null. Threads: any. Blocks: never (takes one short lock).
  static std::shared_ptr<const WeightTable> Find(int32_t id);

  ~WeightTable();
  WeightTable(const WeightTable&) = delete;
  WeightTable& operator=(const WeightTable&) = delete;

  int32_t id() const { return id_; }
  double own() const { return neighborhood_.own; }
  const std::vector<Neighbor>& sources() const { return neighborhood_.sources; }
  const std::vector<Neighbor>& destinations() const { return neighborhood_.destinations; }
  bool sends_weights() const { return form_.sends_weights; }
  // Elements of source number `index` where this rank has `count`.
  uint64_t CountOf(size_t index, uint64_t count) const {
    return form_.source_counts.empty() ? count : form_.source_counts[index];
  }
  // Of all sources.
  uint64_t TotalCount(uint64_t count) const;

 private:
  WeightTable(Neighborhood neighborhood, Form form, int32_t id)
      : neighborhood_(std::move(neighborhood)), form_(std::move(form)), id_(id) {}

  const Neighborhood neighborhood_;
  const Form form_;
  const int32_t id_;
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_WEIGHT_TABLE_H_
