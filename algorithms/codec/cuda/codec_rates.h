// How fast the GPU's codecs are beside the device's own copy.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_CODEC_RATES_H_
#define PELTON_ALGORITHMS_CODEC_CUDA_CODEC_RATES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "core/memory/dtype.h"

namespace pelton::codec {

// MinMaxUInt8 of a tensor as one chunk and in pieces, in turns with a copy; prints a line each with
// the bytes that had to be read and written, over the time, and its share of the copy's rate.
// Blocks: until all is measured. Errors: Internal: CUDA's words.
absl::Status MeasureRates(DType dtype, uint64_t count);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CUDA_CODEC_RATES_H_
