// Half a byte an element and a scale per block.
// Payload: rint(x * (7 / m)) + 8, m being the block's largest magnitude, the first of two elements
// in the low bits; x' = (level - 8) * (m / 7). Bytes: count / 2 and 4 for each 128, with
// BlockCodec's padding.
// Error: half a step of m / 7. Blocks with m below 2^-100 become zeros.
#include "algorithms/codec/block_codec.h"
#include "algorithms/codec/block_kernels.h"

namespace pelton {
namespace {

// Threads: as Codec. Owns: nothing.
class BlockInt4 final : public codec::BlockCodec {
 public:
  BlockInt4()
      : BlockCodec({.bits = 4,
                    .block = 128,
                    .bound = {1.0 / 14 * 1.0001, 0x1p-100},
                    .encode = codec::EncodeInt4Blocks,
                    .decode = codec::DecodeInt4Blocks}) {}
};

REGISTER_CODEC(block_int4, "half a byte an element, a scale per block", BlockInt4);

}  // namespace
}  // namespace pelton
