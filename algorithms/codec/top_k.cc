// The elements of largest magnitude, with their indices; the others become zero.
// Bytes: k indices of 4 bytes (8 beyond 2^32 elements) and k values of the dtype's size (at most
// 4), each part rounded up to 32; k = ceil(ratio * count). TopKLayout has the format. Option:
// ratio, above 0 and at most 1; 0.01. Of equal magnitudes the lower index is kept. Source: Aji and
// Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017. Error: at most the
// largest magnitude; what is kept is exact in float32. Not finite: NaN, then infinities are kept
// first.
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/layout.h"
#include "algorithms/codec/top_k_layout.h"
#include "algorithms/codec/top_k_selection.h"

namespace pelton {
namespace {

using codec::TopKLayout;

// Threads: as Codec. Owns: nothing.
class TopK final : public Codec {
 public:
  absl::Status Configure(const CodecOptions& options) override {
    for (const auto& [option, value] : options) {
      if (option != "ratio") return UnknownCodecOption(option, "ratio");
      if (!absl::SimpleAtod(value, &ratio_) || !(ratio_ > 0) || !(ratio_ <= 1)) {
        return absl::InvalidArgumentError(
            absl::StrCat("option ratio is '", value, "', not a number above 0 and at most 1"));
      }
    }
    return absl::OkStatus();
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
    const std::vector<codec::KeptElement> kept =
        codec::SelectLargest(source, count, dtype, layout.kept);
    std::byte* const values = encoded + layout.values_at;
    const uint64_t value_bytes = SizeOf(layout.value_dtype);
    for (uint64_t i = 0; i < kept.size(); ++i) {
      // Little-endian: the low half of an index comes first.
      std::memcpy(encoded + i * layout.index_bytes, &kept[i].index, layout.index_bytes);
      codec::FloatsTo(&kept[i].value, 1, layout.value_dtype, values + i * value_bytes);
    }
    codec::ZeroRestOfPart(encoded, layout.kept * layout.index_bytes);
    codec::ZeroRestOfPart(values, layout.ValueBytes());
  }

  void Decode(const std::byte* encoded, uint64_t count, DType dtype,
              std::byte* target) const override {
    const TopKLayout layout(count, ratio_, dtype);
    const uint64_t value_bytes = SizeOf(layout.value_dtype);
    if (count != 0) std::memset(target, 0, count * SizeOf(dtype));
    for (uint64_t i = 0; i < layout.kept; ++i) {
      uint64_t index = 0;
      std::memcpy(&index, encoded + i * layout.index_bytes, layout.index_bytes);
      if (index >= count) continue;  // no encoder writes one, but a peer may send it
      float value;
      codec::FloatsFrom(encoded + layout.values_at + i * value_bytes, 1, layout.value_dtype,
                        &value);
      codec::FloatsTo(&value, 1, dtype, target + index * SizeOf(dtype));
    }
  }

 private:
  double ratio_ = 0.01;
};

REGISTER_CODEC(top_k, "the elements of largest magnitude, with their indices", TopK);

}  // namespace
}  // namespace pelton
