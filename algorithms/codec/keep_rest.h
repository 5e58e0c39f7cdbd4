// What of a sum a lossy message did not say, with the instructions of this processor.
#ifndef PELTON_ALGORITHMS_CODEC_KEEP_REST_H_
#define PELTON_ALGORITHMS_CODEC_KEEP_REST_H_

#include <cstddef>
#include <cstdint>

#include "core/memory/dtype.h"

namespace pelton::codec {

// residual = residual - decoded, 0 where that is not finite; as error_feedback.h rounds it.
// Shape: [count] each. Nothing needs to be aligned. Requires: IsConvertible(dtype).
void KeepRest(const std::byte* decoded, uint64_t count, DType dtype, std::byte* residual);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_KEEP_REST_H_
