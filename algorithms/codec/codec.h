// A codec makes a flat tensor smaller for the wire, and turns the bytes back into a tensor.
#ifndef PELTON_ALGORITHMS_CODEC_CODEC_H_
#define PELTON_ALGORITHMS_CODEC_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/memory/device_queue.h"
#include "core/memory/dtype.h"
#include "core/registry/option_table.h"
#include "core/registry/registry.h"

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

using CodecOptions = Options;

// How far a decoded element is from what was encoded, at most; x is the largest magnitude of the
// tensor, all of it finite. What rounding to a narrower dtype adds comes on top.
struct ErrorBound {
  double of_largest;  // times x
  double absolute;
};

// What error_feedback.h's EncodeWithFeedback takes. Threads: a value. Owns: nothing.
struct FeedbackTensors {
  const std::byte* source;
  std::byte* residual;
  std::byte* decoded;
  uint64_t count;
  DType dtype;
};

// One file algorithms/codec/<name>.cc implements it and registers it by name, with its format, the
// bytes it makes and the error bound in its header comment; codec/reference.h holds the scalar
// oracle that it equals bit by bit.
// Threads: any, once configured: the methods are const and keep nothing. Owns: its options.
class Codec {
 public:
  virtual ~Codec() = default;

  // Errors: InvalidArgument: an unknown option or a value that does not fit, named with those that
  // do.
  absl::Status Configure(const CodecOptions& options);
  // Binds every option that there is to the member that holds its value.
  virtual void BindOptions(OptionTable&) {}
  // Whether it encodes tensors of `dtype`.
  virtual bool Takes(DType dtype) const = 0;
  // Size of one encoded chunk; a multiple of 32, and the same for all contents. Units: bytes.
  virtual uint64_t EncodedBytes(uint64_t count, DType dtype) const = 0;
  // Whether what it drops is so much that the sender must add it to its next message (error
  // feedback) for training to converge.
  virtual bool NeedsErrorFeedback() const { return false; }
  virtual ErrorBound Bound() const = 0;

  // Elements are taken as float32. An overflow stays visible: where the source has NaN or an
  // infinity, or float32 overflows, so does what is decoded; each codec says how much of it.
  // Shape: source [count], encoded [EncodedBytes(count, dtype)] at a multiple of 32; every byte of
  // it is written, so that equal tensors give equal messages. Nothing overlaps. The tensors need
  // not be aligned.
  virtual void Encode(const std::byte* source, uint64_t count, DType dtype,
                      std::byte* encoded) const = 0;
  // Shape: as Encode. Any bytes of the right size decode to some tensor: what a peer sends can
  // neither be read past nor written past.
  virtual void Decode(const std::byte* encoded, uint64_t count, DType dtype,
                      std::byte* target) const = 0;

  // All that EncodeWithFeedback (error_feedback.h) does, bitwise, for a codec that can do it with
  // fewer passes over memory than Encode and Decode take. False: it did nothing.
  virtual bool EncodeSum(const FeedbackTensors&, std::byte* encoded) const { return false; }

  // Its work on a device's memory; null where there is none, as without the device's library. It
  // lives as long as the process.
  virtual const ExchangeKernels* KernelsOf(DeviceKind device) const { return nullptr; }
};

using CodecFactory = std::unique_ptr<Codec> (*)();
using CodecRegistry = Registry<CodecFactory>;

// The codec `name`, configured. Errors: NotFound: lists the names there are; Configure's.
absl::StatusOr<std::unique_ptr<Codec>> MakeCodec(const std::string& name,
                                                 const CodecOptions& options);

}  // namespace pelton

// One line beside a codec's code: REGISTER_CODEC(name, "summary", Class);
#define REGISTER_CODEC(name, summary, type)                           \
  static const bool pelton_registered_codec_##name [[maybe_unused]] = \
      ::pelton::CodecRegistry::Get().Register(                        \
          #name, summary,                                             \
          []() -> std::unique_ptr<::pelton::Codec> { return std::make_unique<type>(); })

#endif  // PELTON_ALGORITHMS_CODEC_CODEC_H_
