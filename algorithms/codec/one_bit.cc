// The sign of each element and the mean magnitude of each block.
// Payload: a bit an element, 1 for negative ones and -0; x' = the mean with that sign. Bytes:
// count / 8 and 4 for each 1024, with BlockCodec's padding. Source: Seide et al., 1-bit stochastic
// gradient descent, Interspeech 2014; scaled as in Karimireddy et al., arXiv 1901.09847, section 4.
// Error: at most the block's largest magnitude, so it needs error feedback.
#include "algorithms/codec/block_codec.h"
#include "algorithms/codec/block_kernels.h"

namespace pelton {
namespace {

// Threads: as Codec. Owns: nothing.
class OneBit final : public codec::BlockCodec {
 public:
  OneBit()
      : BlockCodec({.bits = 1,
                    .block = 1024,
                    .bound = {1, 0},
                    .encode = codec::EncodeOneBitBlocks,
                    .decode = codec::DecodeOneBitBlocks}) {}
};

REGISTER_CODEC(one_bit, "a sign an element, the mean magnitude per block", OneBit);

}  // namespace
}  // namespace pelton
