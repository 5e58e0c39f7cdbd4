// Casts to a 16-bit floating point type: float16 and bfloat16.
// Format: an element each, in order; zeros up to a multiple of 32. Bytes: 2 * count, rounded up to
// 32.
// Error: half a unit in the last of 11 (float16) or 8 (bfloat16) bits of each element; below the
// smallest normal number, half of the smallest denormal one. Not finite: NaN and infinities stay;
// what is too large for the type (float16: 65520 and more) becomes infinite.
#include "algorithms/codec/codec.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/layout.h"

namespace pelton {
namespace {

// Threads: as Codec. Owns: nothing.
class Cast : public Codec {
 public:
  Cast(DType narrow, ErrorBound bound) : narrow_(narrow), bound_(bound) {}

  bool Takes(DType dtype) const override { return codec::IsConvertible(dtype); }
  uint64_t EncodedBytes(uint64_t count, DType) const override {
    return codec::RoundedUpToPart(count * SizeOf(narrow_));
  }
  ErrorBound Bound() const override { return bound_; }

  void Encode(const std::byte* source, uint64_t count, DType dtype,
              std::byte* encoded) const override {
    codec::Convert(source, count, {dtype, narrow_}, encoded);
    codec::ZeroRestOfPart(encoded, count * SizeOf(narrow_));
  }

  void Decode(const std::byte* encoded, uint64_t count, DType dtype,
              std::byte* target) const override {
    codec::Convert(encoded, count, {narrow_, dtype}, target);
  }

 private:
  const DType narrow_;
  const ErrorBound bound_;
};

// Threads: as Codec. Owns: nothing.
class Float16Cast final : public Cast {
 public:
  Float16Cast() : Cast(DType::kFloat16, {0x1p-11, 0x1p-25}) {}
};

// Threads: as Codec. Owns: nothing.
class BFloat16Cast final : public Cast {
 public:
  BFloat16Cast() : Cast(DType::kBFloat16, {0x1p-8, 0x1p-134}) {}
};

REGISTER_CODEC(float16, "cast to float16", Float16Cast);
REGISTER_CODEC(bfloat16, "cast to bfloat16", BFloat16Cast);

}  // namespace
}  // namespace pelton
