// PowerSGD's exchange: two thin factors in place of each matrix.
#ifndef PELTON_ALGORITHMS_STAGE_POWER_SGD_STAGE_H_
#define PELTON_ALGORITHMS_STAGE_POWER_SGD_STAGE_H_

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "comm/communicator.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"

namespace pelton {

// The arithmetic of low-rank approximation: tall, thin products, which are bound by memory.
// `rank` vectors of `count` elements, one after the other. Every operation below has a fixed order
// of additions, so that ranks of equal inputs get equal bits, whatever their processors.
// Threads: a value. Owns: nothing.
template <typename T>
struct Vectors {
  T* data;
  uint64_t count;
  uint64_t rank;

  T* operator[](uint64_t k) const { return data + k * count; }
};

// The sum of products, in float64. Shape: both [count].
template <typename T>
double WideDot(const T* a, const T* b, uint64_t count);

// products[k][row] = the dot product of `elements` and factors[k], in T. Shape: elements
// [factors.count].
template <typename T>
void MultiplyRow(const T* elements, Vectors<T> factors, uint64_t row, Vectors<T> products);

// sums[k] += rows[i] * factors[k][first_row + i], for i below row_count. Shape: rows [row_count,
// sums.count].
template <typename T>
void AddWeightedRows(const T* rows, uint64_t first_row, uint64_t row_count, Vectors<T> factors,
                     Vectors<T> sums);

// elements = the sum over k of left[k][row] * right[k]. Shape: elements [right.count].
template <typename T>
void ExpandRow(Vectors<T> left, uint64_t row, Vectors<T> right, T* elements);

// Modified Gram-Schmidt: unit vectors of the same span. A vector that depends on those before it,
// to the precision of T, becomes zeros; one with NaN or infinity becomes NaN.
template <typename T>
void Orthogonalize(Vectors<T> vectors);

// Makes unit vectors of `vectors`, each on its own; replaces those that are zeros or not finite by
// pseudo-random ones, which depend on `seed` and the shape alone.
template <typename T>
void NormalizeOrReplace(Vectors<T> vectors, uint64_t seed);

// The stage's name and those of what it keeps, under which one rank keeps the same
// (MakeDeliverStage in tier_stages.h).
inline constexpr absl::string_view kPowerSgd = "power sgd";
inline constexpr absl::string_view kPowerSgdError = "error";
inline constexpr absl::string_view kPowerSgdQuery = "query";

// Threads: a value. Owns: nothing.
struct PowerSgdOptions {
  uint64_t rank = 2;           // of the approximation
  double min_compression = 2;  // a matrix is compressed where that makes it smaller by more
  // Earlier rounds are allreduces: gradients change most in a training's beginning, and what
  // approximations of low rank lose there is not made up for later.
  uint64_t start_round = 256;
};

// Whether a tensor's factors travel in its place.
bool IsCompressed(const TensorSpec& tensor, const PowerSgdOptions& options);

// The mean over `ranks`, each matrix by an approximation of rank options.rank; what an
// approximation drops is added to the next round's tensor ("error"), and it starts from the last
// one ("query": unit vectors, in the first elements of their matrix; zeros before the first round).
// Takes buckets of floating point, without standalone tensors.
std::unique_ptr<Stage> MakePowerSgdStage(const PowerSgdOptions& options, const BucketLayout& layout,
                                         Communicator& ranks);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_POWER_SGD_STAGE_H_
