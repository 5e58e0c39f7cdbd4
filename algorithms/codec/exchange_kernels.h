// What a compressed exchange computes where its tensors are in a device's memory.
#ifndef PELTON_ALGORITHMS_CODEC_EXCHANGE_KERNELS_H_
#define PELTON_ALGORITHMS_CODEC_EXCHANGE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "core/memory/dtype.h"
#include "core/memory/stream.h"

namespace pelton {

// One message of each of `count` ranks, in rank order: the first one, and how far it is from one to
// the next. Units: bytes. Threads: a value. Owns: nothing.
struct RankMessages {
  std::byte* first;
  uint64_t stride_bytes;
  int32_t count;

  std::byte* of(int32_t rank) const { return first + static_cast<uint64_t>(rank) * stride_bytes; }
};

// What a tensor consists of. Threads: a value. Owns: nothing.
struct Elements {
  uint64_t count;
  DType dtype;
};

// The work of one codec, put on a stream. The stream reports errors of the device, after the call
// has returned. Encoded tensors are in pieces, bit by bit as PieceCodec (stage/piece_codec.h) makes
// them.
// Threads: any. Owns: what its subclass says.
class ExchangeKernels {
 public:
  virtual ~ExchangeKernels() = default;

  // Shape: source [elements.count], encoded [PieceCodec::EncodedBytes(elements.count)] at a
  // multiple of 32. Errors, here and below: InvalidArgument: a dtype that the codec does not take,
  // or a stream of another device; Internal: the device's.
  virtual absl::Status Encode(const std::byte* source, Elements elements, std::byte* encoded,
                              Stream& stream) const = 0;
  // Shape: as Encode.
  virtual absl::Status Decode(const std::byte* encoded, Elements elements, std::byte* target,
                              Stream& stream) const = 0;
  // Decodes the versions, adds them in rank order as PieceSum does, divides the sum and encodes it.
  // Shape: each version and encoded as Encode has it.
  virtual absl::Status Merge(const RankMessages& versions, Elements elements, uint64_t divisor,
                             std::byte* encoded, Stream& stream) const = 0;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_CODEC_EXCHANGE_KERNELS_H_
