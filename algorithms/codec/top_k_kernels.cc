#include "algorithms/codec/top_k_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/keep_rest.h"
#include "algorithms/codec/select_kernel.h"
#include "comm/reduction/reduction.h"

namespace pelton::codec {

namespace {

// Threads: a value. Owns: nothing.
struct Range {
  uint32_t least;
  uint32_t most;
};

// Compares as signed numbers, which every instruction set has.
Range RangeOf(absl::Span<const uint32_t> keys) {
  auto least = static_cast<int32_t>(keys[0]);
  int32_t most = least;
  for (const uint32_t key : keys) {
    least = std::min(least, static_cast<int32_t>(key));
    most = std::max(most, static_cast<int32_t>(key));
  }
  return {static_cast<uint32_t>(least), static_cast<uint32_t>(most)};
}

}  // namespace

KthLargestKey KthLargest(absl::Span<uint32_t> keys, uint64_t rank) {
  constexpr int kBits = 8;  // of ranges at a time: 2 KiB of counts, and at most four times
  while (true) {
    const auto [least, most] = RangeOf(keys);
    if (least == most) return {least, rank};
    const int shift = std::max(0, static_cast<int>(std::bit_width(most - least)) - kBits);
    std::array<uint64_t, 1 << kBits> counts = {};
    for (const uint32_t key : keys) ++counts[(key - least) >> shift];
    uint32_t range = (most - least) >> shift;
    while (counts[range] < rank) rank -= counts[range--];
    if (shift == 0) return {least + range, rank};
    size_t kept = 0;  // always written, counted where it belongs: a branch would be guessed wrong
    for (const uint32_t key : keys) {
      keys[kept] = key;
      kept += (key - least) >> shift == range ? 1 : 0;
    }
    keys = keys.first(kept);
  }
}

namespace {

// Copies the elements at begin, begin + stride, ...
template <size_t kBytes>
void Gather(const std::byte* from, uint64_t stride, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * kBytes, from + i * stride * kBytes, kBytes);
  }
}

void Gather(const std::byte* from, size_t element_bytes, uint64_t stride, size_t count,
            std::byte* to) {
  if (element_bytes == 2) return Gather<2>(from, stride, count, to);
  if (element_bytes == 4) return Gather<4>(from, stride, count, to);
  Gather<8>(from, stride, count, to);
}

template <typename T>
void Gather(const std::byte* from, absl::Span<const uint32_t> at, T* to) {
  for (size_t i = 0; i < at.size(); ++i) std::memcpy(to + i, from + at[i] * sizeof *to, sizeof *to);
}

void AddTo(std::byte* sum, const std::byte* source, uint64_t count, DType dtype) {
  const std::byte* const terms[] = {source, sum};
  Reduce(terms, {&sum, 1}, count, dtype, ReduceOp::kSum);
}

// Elements at even distances, an odd one: the columns of a matrix come in turns.
std::vector<float> Sample(const SelectionSource& from) {
  const uint64_t wanted = std::clamp<uint64_t>(from.count / 64, 256, 16384);
  const uint64_t stride = (from.count / wanted) | 1;
  const size_t count = (from.count + stride - 1) / stride;
  const size_t bytes = SizeOf(from.dtype);
  std::vector<std::byte> elements(count * bytes);
  Gather(from.source, bytes, stride, count, elements.data());
  if (from.residual != nullptr) {
    std::vector<std::byte> residual(count * bytes);
    Gather(from.residual, bytes, stride, count, residual.data());
    AddTo(elements.data(), residual.data(), count, from.dtype);
  }
  std::vector<float> floats(count);
  FloatsFrom(elements.data(), count, from.dtype, floats.data());
  return floats;
}

// A key that somewhat more than `kept` elements probably reach: three standard deviations more.
// That of the sample is found as that of the tensor, by a smaller sample.
uint32_t GuessKey(const SelectionSource& from, uint64_t kept) {
  if (from.count <= 512 || kept > from.count / 2) return 0;
  const std::vector<float> sample = Sample(from);
  const double share = static_cast<double>(kept) / static_cast<double>(from.count);
  const double expected = share * static_cast<double>(sample.size());
  const auto rank = static_cast<uint64_t>(expected + 3 * std::sqrt(expected) + 3);
  if (rank > sample.size()) return 0;
  const auto* const bytes = reinterpret_cast<const std::byte*>(sample.data());
  const KeptElements<uint32_t> largest =
      SelectLargest<uint32_t>({bytes, nullptr, sample.size(), DType::kFloat32}, rank);
  uint32_t least = MagnitudeKey(largest.values[0]);
  for (uint64_t i = 1; i < rank; ++i) least = std::min(least, MagnitudeKey(largest.values[i]));
  return least;
}

constexpr size_t kAddedCount = 2048;  // at a time

// What may be among the largest of the elements seen so far.
// Threads: one. Owns: indices and values.
template <typename Index>
class Candidates {
 public:
  Candidates(uint64_t count, uint64_t kept, uint32_t least)
      : kept_(kept),
        capacity_(std::min(kept + kept * 3 / 4, count) + kAddedCount),
        least_(least),
        indices_(std::make_unique_for_overwrite<Index[]>(capacity_)),
        values_(std::make_unique_for_overwrite<float[]>(capacity_)) {}

  // Elements of float32, float16 or bfloat16 that follow those added before.
  // Requires: count <= kAddedCount.
  void Add(const std::byte* elements, uint64_t begin, size_t count, DType dtype) {
    if (size_ + kAddedCount > capacity_) KeepLargest();
    std::array<uint32_t, kAddedCount + kIndicesSlack> found;
    const size_t found_count = IndicesAtLeast(elements, count, dtype, least_, found.data());
    const absl::Span<const uint32_t> at(found.data(), found_count);
    Index* const indices = &indices_[size_];
    for (size_t i = 0; i < at.size(); ++i) indices[i] = static_cast<Index>(begin + at[i]);
    if (dtype == DType::kFloat32) {
      Gather<float>(elements, at, &values_[size_]);
    } else {
      std::array<uint16_t, kAddedCount> halves;
      Gather<uint16_t>(elements, at, halves.data());
      FloatsFrom(reinterpret_cast<const std::byte*>(halves.data()), at.size(), dtype,
                 &values_[size_]);
    }
    size_ += at.size();
  }

  // Leaves the largest ones, in their order, if there are more than those.
  void KeepLargest() {
    if (size_ <= kept_) return;
    std::vector<uint32_t> keys(size_);
    for (uint64_t i = 0; i < size_; ++i) keys[i] = MagnitudeKey(values_[i]);
    auto [least, equal] = KthLargest(absl::MakeSpan(keys), kept_);
    uint64_t left = 0;  // always written, counted if kept: a branch would be guessed wrong
    for (uint64_t i = 0; i < size_; ++i) {
      const uint32_t key = MagnitudeKey(values_[i]);
      const bool is_equal = key == least && equal != 0;
      indices_[left] = indices_[i];
      values_[left] = values_[i];
      equal -= is_equal ? 1 : 0;
      left += key > least || is_equal ? 1 : 0;
    }
    size_ = left;
    least_ = std::max(least_, least + 1);  // of equal ones those seen first are kept
  }

  uint64_t size() const { return size_; }
  KeptElements<Index> Taken() && { return {size_, std::move(indices_), std::move(values_)}; }

 private:
  const uint64_t kept_;
  const uint64_t capacity_;
  uint64_t size_ = 0;
  uint32_t least_;  // key of the smallest that may still be among the largest
  std::unique_ptr<Index[]> indices_;
  std::unique_ptr<float[]> values_;
};

template <typename Index>
Candidates<Index> Collect(const SelectionSource& from, uint64_t kept, uint32_t least) {
  Candidates<Index> candidates(from.count, kept, least);
  const size_t bytes = SizeOf(from.dtype);
  std::array<float, kAddedCount> floats;
  for (uint64_t begin = 0; begin < from.count; begin += kAddedCount) {
    const auto length = static_cast<size_t>(std::min<uint64_t>(kAddedCount, from.count - begin));
    const std::byte* block = from.source + begin * bytes;
    if (from.residual != nullptr) {
      AddTo(from.residual + begin * bytes, block, length, from.dtype);
      block = from.residual + begin * bytes;
    }
    if (from.dtype == DType::kFloat64) {
      FloatsFrom(block, length, from.dtype, floats.data());
      block = reinterpret_cast<const std::byte*>(floats.data());
    }
    candidates.Add(block, begin, length,
                   from.dtype == DType::kFloat64 ? DType::kFloat32 : from.dtype);
  }
  candidates.KeepLargest();
  return candidates;
}

}  // namespace

template <typename Index>
KeptElements<Index> SelectLargest(const SelectionSource& from, uint64_t kept) {
  if (kept == 0) return {0, nullptr, nullptr};
  Candidates<Index> candidates = Collect<Index>(from, kept, GuessKey(from, kept));
  if (candidates.size() < kept) {
    const std::byte* const all = from.residual != nullptr ? from.residual : from.source;
    return Collect<Index>({all, nullptr, from.count, from.dtype}, kept, 0).Taken();
  }
  return std::move(candidates).Taken();
}

template KeptElements<uint32_t> SelectLargest(const SelectionSource&, uint64_t kept);
template KeptElements<uint64_t> SelectLargest(const SelectionSource&, uint64_t kept);

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
