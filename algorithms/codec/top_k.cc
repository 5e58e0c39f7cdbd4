// The elements of largest magnitude, with their indices; the others become zero.
// Bytes: k indices of 4 bytes (8 beyond 2^32 elements) and k values of the dtype's size (at most
// 4), each part rounded up to 32; k = ceil(ratio * count). TopKLayout has the format. Option:
// ratio, above 0 and at most 1; 0.01. Of equal magnitudes the lower index is kept. Source: Aji and
// Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017. Error: at most the
// largest magnitude; what is kept is exact in float32. Not finite: NaN, then infinities are kept
// first.
#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/keep_rest.h"
#include "algorithms/codec/layout.h"
#include "algorithms/codec/specification.h"
#include "algorithms/codec/top_k_kernels.h"

namespace pelton {
namespace {

using codec::SelectionSource;
using codec::TopKLayout;

// Writes the largest elements and returns whether any of them is finite.
template <typename Index>
bool Write(const SelectionSource& from, const TopKLayout& layout, std::byte* encoded) {
  const codec::KeptElements<Index> kept = codec::SelectLargest<Index>(from, layout.kept);
  const float* const values = kept.values.get();
  if (kept.count != 0) std::memcpy(encoded, kept.indices.get(), kept.count * sizeof(Index));
  codec::FloatsTo(values, kept.count, layout.value_dtype, encoded + layout.values_at);
  codec::ZeroRestOfPart(encoded, layout.kept * layout.index_bytes);
  codec::ZeroRestOfPart(encoded + layout.values_at, layout.ValueBytes());
  return std::any_of(values, values + kept.count, codec::IsFinite);
}

bool Write(const SelectionSource& from, const TopKLayout& layout, std::byte* encoded) {
  if (layout.index_bytes == sizeof(uint32_t)) return Write<uint32_t>(from, layout, encoded);
  return Write<uint64_t>(from, layout, encoded);
}

// Threads: as Codec. Owns: nothing.
class TopK final : public Codec {
 public:
  void BindOptions(OptionTable& table) override {
    table.Add({"ratio", absl::StrCat(ratio_), "a number above 0 and at most 1",
               "elements that are sent, of all"},
              [this](absl::string_view text) {
                double ratio = 0;
                const bool fits = absl::SimpleAtod(text, &ratio) && ratio > 0 && ratio <= 1;
                if (fits) ratio_ = ratio;
                return fits;
              });
  }
  bool Takes(DType dtype) const override { return codec::IsConvertible(dtype); }
  uint64_t EncodedBytes(uint64_t count, DType dtype) const override {
    return TopKLayout(count, ratio_, dtype).Bytes();
  }
  bool NeedsErrorFeedback() const override { return true; }
  ErrorBound Bound() const override { return {1, 0}; }

  void Encode(const std::byte* source, uint64_t count, DType dtype,
              std::byte* encoded) const override {
    const TopKLayout layout(count, ratio_, dtype);
    Write({source, nullptr, count, dtype}, layout, encoded);
  }

  void Decode(const std::byte* encoded, uint64_t count, DType dtype,
              std::byte* target) const override {
    const TopKLayout layout(count, ratio_, dtype);
    codec::ScatterOverZeros(encoded, layout, count, dtype, target);
  }

  bool EncodeSum(const FeedbackTensors& tensors, std::byte* encoded) const override {
    const auto& [source, residual, decoded, count, dtype] = tensors;
    const TopKLayout layout(count, ratio_, dtype);
    const bool any_is_finite = Write({source, residual, count, dtype}, layout, encoded);
    Decode(encoded, count, dtype, decoded);
    if (any_is_finite) {  // so is all that was not kept, and its rest is itself
      codec::KeepRestOfKept(encoded, layout, decoded, dtype, residual);
    } else {
      codec::KeepRest(decoded, count, dtype, residual);
    }
    return true;
  }

 private:
  double ratio_ = 0.01;
};

REGISTER_CODEC(top_k, "the elements of largest magnitude, with their indices", TopK);

}  // namespace
}  // namespace pelton
