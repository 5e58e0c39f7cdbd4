#include "algorithms/stage/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/split_mix.h"

namespace pelton {
namespace {

// Element i is added in part i % kParts, and the parts in halves: an order that vectors of every
// width can keep.
constexpr uint64_t kParts = 16;

template <typename Sum, typename T>
Sum DotInParts(const T* __restrict a, const T* __restrict b, uint64_t count) {
  Sum parts[kParts] = {};
  uint64_t i = 0;
  for (; i + kParts <= count; i += kParts) {
    for (uint64_t p = 0; p < kParts; ++p) {
      parts[p] += static_cast<Sum>(a[i + p]) * static_cast<Sum>(b[i + p]);
    }
  }
  for (uint64_t p = 0; i + p < count; ++p) {
    parts[p] += static_cast<Sum>(a[i + p]) * static_cast<Sum>(b[i + p]);
  }
  for (uint64_t half = kParts / 2; half > 0; half /= 2) {
    for (uint64_t p = 0; p < half; ++p) parts[p] += parts[p + half];
  }
  return parts[0];
}

template <typename T>
void AddScaled(const T* __restrict from, T factor, uint64_t count, T* __restrict to) {
  for (uint64_t i = 0; i < count; ++i) to[i] += from[i] * factor;
}

template <typename T>
void Scale(double factor, uint64_t count, T* values) {
  for (uint64_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<double>(values[i]) * factor);
  }
}

// Within -1 and 1.
double Random(uint64_t number) {
  return static_cast<double>(static_cast<int64_t>(SplitMix(0, number - 1))) * 0x1p-63;
}

}  // namespace

template <typename T>
double WideDot(const T* a, const T* b, uint64_t count) {
  return DotInParts<double>(a, b, count);
}

template <typename T>
void MultiplyRow(const T* elements, Vectors<T> factors, uint64_t row, Vectors<T> products) {
  for (uint64_t k = 0; k < factors.rank; ++k) {
    products[k][row] = DotInParts<T>(elements, factors[k], factors.count);
  }
}

template <typename T>
void AddWeightedRows(const T* rows, uint64_t first_row, uint64_t row_count, Vectors<T> factors,
                     Vectors<T> sums) {
  const uint64_t columns = sums.count;
  for (uint64_t k = 0; k < sums.rank; ++k) {
    const T* const factor = factors[k] + first_row;
    uint64_t i = 0;
    for (; i + 4 <= row_count; i += 4) {  // four at a time: a quarter of the traffic on the sums
      const T* __restrict const at = rows + i * columns;
      T* __restrict const sum = sums[k];
      for (uint64_t j = 0; j < columns; ++j) {
        sum[j] = (((sum[j] + at[j] * factor[i]) + at[columns + j] * factor[i + 1]) +
                  at[2 * columns + j] * factor[i + 2]) +
                 at[3 * columns + j] * factor[i + 3];
      }
    }
    for (; i < row_count; ++i) AddScaled(rows + i * columns, factor[i], columns, sums[k]);
  }
}

template <typename T>
void ExpandRow(Vectors<T> left, uint64_t row, Vectors<T> right, T* elements) {
  std::fill_n(elements, right.count, T{0});
  for (uint64_t k = 0; k < right.rank; ++k) {
    AddScaled(right[k], left[k][row], right.count, elements);
  }
}

template <typename T>
void Orthogonalize(Vectors<T> vectors) {
  constexpr double kDependent = 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (uint64_t k = 0; k < vectors.rank; ++k) {
    T* const own = vectors[k];
    const double before = WideDot(own, own, vectors.count);
    for (uint64_t j = 0; j < k; ++j) {
      const double along = WideDot(vectors[j], own, vectors.count);
      AddScaled(vectors[j], static_cast<T>(-along), vectors.count, own);
    }
    const double after = WideDot(own, own, vectors.count);
    // NaN is in neither order: it goes on to be seen.
    const bool depends = after <= kDependent * kDependent * before;
    Scale(depends ? 0 : 1 / std::sqrt(after), vectors.count, own);
  }
}

template <typename T>
void NormalizeOrReplace(Vectors<T> vectors, uint64_t seed) {
  for (uint64_t k = 0; k < vectors.rank; ++k) {
    T* const own = vectors[k];
    double square = WideDot(own, own, vectors.count);
    if (!(square > 0) || !std::isfinite(square)) {
      for (uint64_t i = 0; i < vectors.count; ++i) {
        own[i] = static_cast<T>(Random(seed + k * vectors.count + i));
      }
      square = WideDot(own, own, vectors.count);
    }
    Scale(1 / std::sqrt(square), vectors.count, own);
  }
}

#define PELTON_INSTANTIATE(T)                                                          \
  template double WideDot(const T*, const T*, uint64_t);                               \
  template void MultiplyRow(const T*, Vectors<T>, uint64_t, Vectors<T>);               \
  template void AddWeightedRows(const T*, uint64_t, uint64_t, Vectors<T>, Vectors<T>); \
  template void ExpandRow(Vectors<T>, uint64_t, Vectors<T>, T*);                       \
  template void Orthogonalize(Vectors<T>);                                             \
  template void NormalizeOrReplace(Vectors<T>, uint64_t);
PELTON_INSTANTIATE(float)
PELTON_INSTANTIATE(double)
#undef PELTON_INSTANTIATE

}  // namespace pelton
