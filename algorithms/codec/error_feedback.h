// What a lossy message dropped, kept to be added to the next one.
#ifndef PELTON_ALGORITHMS_CODEC_ERROR_FEEDBACK_H_
#define PELTON_ALGORITHMS_CODEC_ERROR_FEEDBACK_H_

#include <cstddef>
#include <cstdint>

#include "algorithms/codec/codec.h"
#include "core/memory/dtype.h"

namespace pelton {

// Encodes source + residual; `decoded` becomes what the message says, and `residual` the rest:
// source + residual - decoded. An element of the residual that is not finite becomes 0, so that an
// overflow shows in one message and not in all that follow. Sums and differences are taken in
// float32 (float64 tensors: rounded to it for the message alone) and rounded to `dtype`.
// Shape: source, residual, decoded [count] of `dtype`; encoded as Codec::Encode. Nothing overlaps.
// Threads: any. Requires: codec.Takes(dtype).
// Source: Karimireddy et al., Error Feedback Fixes SignSGD, arXiv 1901.09847, algorithm 2.
void EncodeWithFeedback(const Codec& codec, const std::byte* source, uint64_t count, DType dtype,
                        std::byte* residual, std::byte* encoded, std::byte* decoded);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_CODEC_ERROR_FEEDBACK_H_
