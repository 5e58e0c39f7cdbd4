// A byte an element and a scale per block: zero stays zero, and one outlier spoils its block alone.
// Payload: rint(x * (127 / m)) + 128, m being the block's largest magnitude; x' = (byte - 128) *
// (m / 127). Bytes: count and 4 for each 256, with BlockCodec's padding.
// Error: half a step of m / 127. Blocks with m below 2^-100 become zeros.
#include "algorithms/codec/block_codec.h"
#include "algorithms/codec/block_kernels.h"

namespace pelton {
namespace {

// Threads: as Codec. Owns: nothing.
class BlockUInt8 final : public codec::BlockCodec {
 public:
  BlockUInt8()
      : BlockCodec({.bits = 8,
                    .block = 256,
                    .bound = {1.0 / 254 * 1.0001, 0x1p-100},
                    .encode = codec::EncodeUInt8Blocks,
                    .decode = codec::DecodeUInt8Blocks}) {}
};

REGISTER_CODEC(block_uint8, "a byte an element, a scale per block", BlockUInt8);

}  // namespace
}  // namespace pelton
