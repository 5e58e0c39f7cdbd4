// What a lossy message dropped, kept to be added to the next one.
#ifndef PELTON_ALGORITHMS_CODEC_ERROR_FEEDBACK_H_
#define PELTON_ALGORITHMS_CODEC_ERROR_FEEDBACK_H_

#include <cstddef>
#include <cstdint>

#include "algorithms/codec/codec.h"
#include "core/memory/dtype.h"

namespace pelton {

// Of the residual of tensors of `dtype`: float32 for those of 16 bits. Those would round it away: a
// part that is below 2^-9 of the elements would never be sent, however often it came.
DType FeedbackDType(DType dtype);

// Encodes source + residual; `decoded` becomes what the message says, and `residual` the rest:
// source + residual - decoded. An element of the residual that is not finite becomes 0, so that an
// overflow shows in one message and not in all that follow. Sums and differences are taken in the
// residual's type (float64 tensors: rounded to float32 for the message alone); the codec gets the
// sum rounded to `dtype`, and what that rounds off stays in the residual.
// Shape: source, decoded [count] of `dtype`, residual [count] of FeedbackDType(dtype); encoded as
// Codec::Encode. Nothing overlaps. Threads: any. Requires: codec.Takes(dtype).
// Source: Karimireddy et al., Error Feedback Fixes SignSGD, arXiv 1901.09847, algorithm 2.
void EncodeWithFeedback(const Codec& codec, const std::byte* source, uint64_t count, DType dtype,
                        std::byte* residual, std::byte* encoded, std::byte* decoded);

// The same with a source that has not been rounded to `dtype`. Shape: source [count] of
// FeedbackDType(dtype), else as above. Requires: a `dtype` of 16 bits, besides.
void EncodeWideWithFeedback(const Codec& codec, const float* source, uint64_t count, DType dtype,
                            std::byte* residual, std::byte* encoded, std::byte* decoded);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_CODEC_ERROR_FEEDBACK_H_
