// The scalar oracle: every codec's format, written the plain way over specification.h.
#ifndef PELTON_ALGORITHMS_CODEC_REFERENCE_H_
#define PELTON_ALGORITHMS_CODEC_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "algorithms/codec/codec.h"
#include "core/memory/dtype.h"

namespace pelton::codec {

// What codec `name` with `options` must make of a tensor, byte by byte, and of an encoded chunk of
// the right size. One element at a time, with memory as it likes: for tests.
// Shape: source [count]; the results hold EncodedBytes(count, dtype) and count elements.
// Errors: NotFound: no reference of that name.
absl::StatusOr<std::vector<std::byte>> ReferenceEncode(const std::string& name,
                                                       const CodecOptions& options,
                                                       const std::byte* source, uint64_t count,
                                                       DType dtype);
absl::StatusOr<std::vector<std::byte>> ReferenceDecode(const std::string& name,
                                                       const CodecOptions& options,
                                                       const std::vector<std::byte>& encoded,
                                                       uint64_t count, DType dtype);

// Elements of the dtypes that codecs take, as float32 rounded half to even, and back.
std::vector<float> FloatsOfElements(const std::byte* elements, uint64_t count, DType dtype);
std::vector<std::byte> ElementsOfFloats(const std::vector<float>& floats, DType dtype);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_REFERENCE_H_
