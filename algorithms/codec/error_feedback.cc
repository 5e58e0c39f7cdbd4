#include "algorithms/codec/error_feedback.h"

#include "algorithms/codec/keep_rest.h"
#include "comm/reduction/reduction.h"
#include "core/base/check.h"

namespace pelton {

void EncodeWithFeedback(const Codec& codec, const std::byte* source, uint64_t count, DType dtype,
                        std::byte* residual, std::byte* encoded, std::byte* decoded) {
  PELTON_CHECK(codec.Takes(dtype)) << NameOf(dtype);
  if (codec.EncodeSum({source, residual, decoded, count, dtype}, encoded)) return;
  const std::byte* const terms[] = {source, residual};
  Reduce(terms, {&residual, 1}, count, dtype, ReduceOp::kSum);
  codec.Encode(residual, count, dtype, encoded);
  codec.Decode(encoded, count, dtype, decoded);
  codec::KeepRest(decoded, count, dtype, residual);
}

}  // namespace pelton
