#include "algorithms/codec/top_k_scatter.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "algorithms/codec/convert.h"
#include "algorithms/codec/keep_rest.h"

namespace pelton::codec {
namespace {

template <typename T>
T At(const std::byte* array, uint64_t i) {
  T value;
  std::memcpy(&value, array + i * sizeof value, sizeof value);
  return value;
}

uint64_t IndexAt(const std::byte* encoded, const TopKLayout& layout, uint64_t i) {
  return layout.index_bytes == sizeof(uint32_t) ? At<uint32_t>(encoded, i)
                                                : At<uint64_t>(encoded, i);
}

template <typename T>
void Put(std::byte* array, uint64_t i, T value) {
  std::memcpy(array + i * sizeof value, &value, sizeof value);
}

// Zeros go block by block before the elements, which therefore fall into the cache. Indices ascend;
// in a peer's message they may not, but each falls on zeros that are there already.
template <typename Index, typename Value, typename Element>
void Scatter(const std::byte* encoded, const TopKLayout& layout, uint64_t count,
             std::byte* target) {
  const std::byte* const values = encoded + layout.values_at;
  uint64_t next = 0;
  for (uint64_t begin = 0; begin < count; begin += kBlockCount) {
    const uint64_t end = std::min(count, begin + kBlockCount);
    std::memset(target + begin * sizeof(Element), 0, (end - begin) * sizeof(Element));
    for (; next < layout.kept; ++next) {
      const uint64_t index = At<Index>(encoded, next);
      if (index < end) {
        Put(target, index, static_cast<Element>(At<Value>(values, next)));
      } else if (index < count) {
        break;
      }
    }
  }
}

template <typename Index>
void ScatterAt(const std::byte* encoded, const TopKLayout& layout, uint64_t count, DType dtype,
               std::byte* target) {
  if (dtype == DType::kFloat64) {
    Scatter<Index, float, double>(encoded, layout, count, target);
  } else if (dtype == DType::kFloat32) {
    Scatter<Index, uint32_t, uint32_t>(encoded, layout, count, target);
  } else {
    Scatter<Index, uint16_t, uint16_t>(encoded, layout, count, target);
  }
}

}  // namespace

void ScatterOverZeros(const std::byte* encoded, const TopKLayout& layout, uint64_t count,
                      DType dtype, std::byte* target) {
  if (layout.index_bytes == sizeof(uint32_t)) {
    ScatterAt<uint32_t>(encoded, layout, count, dtype, target);
  } else {
    ScatterAt<uint64_t>(encoded, layout, count, dtype, target);
  }
}

void KeepRestOfKept(const std::byte* encoded, const TopKLayout& layout, const std::byte* decoded,
                    DType dtype, std::byte* residual) {
  const size_t bytes = SizeOf(dtype);
  std::array<uint64_t, kBlockCount> at;
  std::array<std::byte, kBlockCount * sizeof(double)> sums;
  std::array<std::byte, kBlockCount * sizeof(double)> said;
  for (uint64_t begin = 0; begin < layout.kept; begin += kBlockCount) {
    const auto length = static_cast<size_t>(std::min<uint64_t>(kBlockCount, layout.kept - begin));
    for (size_t i = 0; i < length; ++i) {
      at[i] = IndexAt(encoded, layout, begin + i) * bytes;
      std::memcpy(&sums[i * bytes], residual + at[i], bytes);
      std::memcpy(&said[i * bytes], decoded + at[i], bytes);
    }
    KeepRest(said.data(), length, dtype, sums.data());
    for (size_t i = 0; i < length; ++i) std::memcpy(residual + at[i], &sums[i * bytes], bytes);
  }
}

}  // namespace pelton::codec
