// What the codecs with a scale per block have in common; they differ in their payload.
#ifndef PELTON_ALGORITHMS_CODEC_BLOCK_CODEC_H_
#define PELTON_ALGORITHMS_CODEC_BLOCK_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "algorithms/codec/block_kernels.h"
#include "algorithms/codec/codec.h"
#include "core/memory/dtype.h"

namespace pelton::codec {

// What makes one of them. Threads: a value. Owns: nothing.
struct BlockFormat {
  uint64_t bits;   // of an element's payload
  uint64_t block;  // elements that share a scale, unless the option says otherwise
  ErrorBound bound;
  EncodeBlocks* encode;
  DecodeBlocks* decode;
};

// Format: a float32 scale per block, zeros up to a multiple of 32; the payload, zeros up to a
// multiple of 32. Bytes: 4 * ceil(count / block) and ceil(count * bits / 8), each rounded up to 32.
// Option: block, a power of two from 32 to 4096. A block with NaN or an infinity in it, or whose
// scale is beyond float32, is NaN; the others are as ever.
// Threads: as Codec. Owns: nothing.
class BlockCodec : public Codec {
 public:
  void BindOptions(OptionTable& table) override;
  bool Takes(DType dtype) const override;
  uint64_t EncodedBytes(uint64_t count, DType dtype) const override;
  bool NeedsErrorFeedback() const override { return true; }
  ErrorBound Bound() const override { return format_.bound; }
  void Encode(const std::byte* source, uint64_t count, DType dtype,
              std::byte* encoded) const override;
  void Decode(const std::byte* encoded, uint64_t count, DType dtype,
              std::byte* target) const override;
  bool EncodeSum(const FeedbackTensors& tensors, std::byte* encoded) const final;

 protected:
  explicit BlockCodec(const BlockFormat& format) : format_(format) {}

 private:
  uint64_t ScaleBytes(uint64_t count) const;
  uint64_t PayloadBytes(uint64_t count) const { return (count * format_.bits + 7) / 8; }

  BlockFormat format_;
};

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_BLOCK_CODEC_H_
