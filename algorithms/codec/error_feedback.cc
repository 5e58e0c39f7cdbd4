#include "algorithms/codec/error_feedback.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/keep_rest.h"
#include "comm/reduction/reduction.h"
#include "core/base/check.h"

namespace pelton {
namespace {

// Small enough for the stack and the first-level cache.
constexpr uint64_t kStepCount = 1024;

bool IsNarrow(DType dtype) { return SizeOf(dtype) == 2; }

std::byte* Bytes(float* floats) { return reinterpret_cast<std::byte*>(floats); }

// Calls f(begin, count) for the steps of a tensor.
void ForEachStep(uint64_t count, absl::FunctionRef<void(uint64_t, uint64_t)> f) {
  for (uint64_t begin = 0; begin < count; begin += kStepCount) {
    f(begin, std::min(kStepCount, count - begin));
  }
}

void AddTo(std::byte* residual, const std::byte* source, uint64_t count, DType dtype) {
  const std::byte* const terms[] = {source, residual};
  Reduce(terms, {&residual, 1}, count, dtype, ReduceOp::kSum);
}

// The residual is the sum already. `decoded` holds it in 16 bits until the message has been made.
void EncodeNarrow(const Codec& codec, uint64_t count, DType dtype, float* residual,
                  std::byte* encoded, std::byte* decoded) {
  codec::FloatsTo(residual, count, dtype, decoded);
  codec.Encode(decoded, count, dtype, encoded);
  codec.Decode(encoded, count, dtype, decoded);
  float said[kStepCount];
  ForEachStep(count, [&](uint64_t begin, uint64_t step) {
    codec::FloatsFrom(decoded + begin * SizeOf(dtype), step, dtype, said);
    codec::KeepRest(Bytes(said), step, DType::kFloat32, Bytes(residual + begin));
  });
}

}  // namespace

DType FeedbackDType(DType dtype) { return IsNarrow(dtype) ? DType::kFloat32 : dtype; }

void EncodeWithFeedback(const Codec& codec, const std::byte* source, uint64_t count, DType dtype,
                        std::byte* residual, std::byte* encoded, std::byte* decoded) {
  PELTON_CHECK(codec.Takes(dtype)) << NameOf(dtype);
  if (IsNarrow(dtype)) {
    auto* const rest = reinterpret_cast<float*>(residual);
    float wide[kStepCount];
    ForEachStep(count, [&](uint64_t begin, uint64_t step) {
      codec::FloatsFrom(source + begin * SizeOf(dtype), step, dtype, wide);
      AddTo(Bytes(rest + begin), Bytes(wide), step, DType::kFloat32);
    });
    return EncodeNarrow(codec, count, dtype, rest, encoded, decoded);
  }
  if (codec.EncodeSum({source, residual, decoded, count, dtype}, encoded)) return;
  AddTo(residual, source, count, dtype);
  codec.Encode(residual, count, dtype, encoded);
  codec.Decode(encoded, count, dtype, decoded);
  codec::KeepRest(decoded, count, dtype, residual);
}

void EncodeWideWithFeedback(const Codec& codec, const float* source, uint64_t count, DType dtype,
                            std::byte* residual, std::byte* encoded, std::byte* decoded) {
  PELTON_CHECK(codec.Takes(dtype)) << NameOf(dtype);
  PELTON_CHECK(IsNarrow(dtype)) << NameOf(dtype);
  AddTo(residual, reinterpret_cast<const std::byte*>(source), count, DType::kFloat32);
  EncodeNarrow(codec, count, dtype, reinterpret_cast<float*>(residual), encoded, decoded);
}

}  // namespace pelton
