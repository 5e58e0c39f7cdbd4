#include "algorithms/codec/top_k_selection.h"

#include <algorithm>
#include <array>
#include <functional>

#include "algorithms/codec/convert.h"
#include "algorithms/codec/select_kernel.h"

namespace pelton::codec {
namespace {

// Threads: a value. Owns: nothing.
struct Tensor {
  const std::byte* source;
  uint64_t count;
  DType dtype;
};

// A key that somewhat more than `kept` elements probably reach, from elements at even distances.
uint32_t GuessKey(const Tensor& tensor, uint64_t kept) {
  constexpr uint64_t kSamples = 1024;
  const uint64_t stride = std::max<uint64_t>(1, tensor.count / kSamples);
  std::vector<uint32_t> keys;
  keys.reserve(2 * kSamples);
  for (uint64_t i = stride / 2; i < tensor.count; i += stride) {
    float x;
    FloatsFrom(tensor.source + i * SizeOf(tensor.dtype), 1, tensor.dtype, &x);
    keys.push_back(MagnitudeKey(x));
  }
  const double share = static_cast<double>(kept) / static_cast<double>(tensor.count);
  const auto rank = static_cast<uint64_t>(share * 1.3 * static_cast<double>(keys.size())) + 12;
  if (rank >= keys.size()) return 0;
  std::nth_element(keys.begin(), keys.begin() + rank, keys.end(), std::greater<>());
  return keys[rank];
}

// Elements whose key is at least `least`, in order, and no more than `limit` of those at `least`
// itself. Stops at `most`; `expected` saves it from growing.
std::vector<KeptElement> Collect(const Tensor& tensor, uint32_t least, uint64_t limit,
                                 uint64_t most, uint64_t expected) {
  std::vector<KeptElement> found;
  found.reserve(expected);
  std::array<uint32_t, kBlockCount> indices;
  ForEachSourceBlock(tensor.source, tensor.count, tensor.dtype, Order::kForward,
                     [&](const float* elements, uint64_t begin, size_t length) {
                       if (found.size() >= most) return;
                       const size_t in_block =
                           IndicesAtLeast(elements, length, least, indices.data());
                       for (size_t i = 0; i < in_block; ++i) {
                         const float x = elements[indices[i]];
                         if (MagnitudeKey(x) == least) {
                           if (limit == 0) continue;
                           --limit;
                         }
                         found.push_back({begin + indices[i], x});
                       }
                     });
  return found;
}

// Threads: a value. Owns: nothing.
struct Threshold {
  uint32_t key;    // of the smallest element kept
  uint64_t equal;  // how many with this key are kept
};

// Digit by digit, each by a pass that counts. Slower than a guess, and never wrong.
Threshold ExactThreshold(const Tensor& tensor, uint64_t kept) {
  constexpr uint32_t kDigits = 1 << 11;
  uint32_t prefix = 0;
  uint32_t known = 0;  // mask of the bits of `prefix` that are found
  uint64_t left = kept;
  for (const uint32_t shift : {20u, 10u, 0u}) {
    std::vector<uint64_t> counts(kDigits);
    const uint32_t mask = shift == 20 ? kDigits - 1 : kDigits / 2 - 1;
    ForEachSourceBlock(tensor.source, tensor.count, tensor.dtype, Order::kForward,
                       [&](const float* elements, uint64_t, size_t length) {
                         for (size_t i = 0; i < length; ++i) {
                           const uint32_t key = MagnitudeKey(elements[i]);
                           if ((key & known) == prefix) ++counts[(key >> shift) & mask];
                         }
                       });
    uint32_t digit = mask;
    while (counts[digit] < left) left -= counts[digit--];
    prefix |= digit << shift;
    known |= mask << shift;
  }
  return {prefix, left};
}

// Leaves `kept` of the found elements, in their order.
void KeepLargest(uint64_t kept, std::vector<KeptElement>& found) {
  std::vector<uint32_t> keys;
  keys.reserve(found.size());
  for (const KeptElement& element : found) keys.push_back(MagnitudeKey(element.value));
  std::nth_element(keys.begin(), keys.begin() + (kept - 1), keys.end(), std::greater<>());
  const uint32_t least = keys[kept - 1];
  uint64_t equal = kept;  // of these as many as the larger ones leave room for
  for (uint64_t i = 0; i < kept; ++i) equal -= keys[i] > least ? 1 : 0;
  std::erase_if(found, [&](const KeptElement& element) {
    const uint32_t key = MagnitudeKey(element.value);
    if (key != least) return key < least;
    if (equal == 0) return true;
    --equal;
    return false;
  });
}

}  // namespace

std::vector<KeptElement> SelectLargest(const std::byte* source, uint64_t count, DType dtype,
                                       uint64_t kept) {
  if (kept == 0) return {};
  const Tensor tensor = {source, count, dtype};
  const uint64_t most = 4 * kept + 2 * kBlockCount;
  std::vector<KeptElement> found = Collect(tensor, GuessKey(tensor, kept), count, most, 2 * kept);
  if (found.size() < kept || found.size() >= most) {
    const Threshold threshold = ExactThreshold(tensor, kept);
    return Collect(tensor, threshold.key, threshold.equal, count + 1, kept);
  }
  KeepLargest(kept, found);
  return found;
}

}  // namespace pelton::codec
