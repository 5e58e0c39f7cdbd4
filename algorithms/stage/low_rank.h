// The arithmetic of low-rank approximation: tall, thin products, which are bound by memory.
#ifndef PELTON_ALGORITHMS_STAGE_LOW_RANK_H_
#define PELTON_ALGORITHMS_STAGE_LOW_RANK_H_

#include <cstdint>

namespace pelton {

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

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_LOW_RANK_H_
