// Where the parts of an encoded chunk lie.
#ifndef PELTON_ALGORITHMS_CODEC_LAYOUT_H_
#define PELTON_ALGORITHMS_CODEC_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pelton::codec {

// Every part begins at a multiple of it. Units: bytes.
inline constexpr uint64_t kPartAlignment = 32;

inline uint64_t RoundedUpToPart(uint64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Zeros from `used` bytes to the end of the part: no byte of a message is left undefined.
inline void ZeroRestOfPart(std::byte* part, uint64_t used) {
  std::memset(part + used, 0, RoundedUpToPart(used) - used);
}

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_LAYOUT_H_
