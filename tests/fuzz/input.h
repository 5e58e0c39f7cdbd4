// The bytes of one run of a fuzz target, taken from the front.
#ifndef PELTON_TESTS_FUZZ_INPUT_H_
#define PELTON_TESTS_FUZZ_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace pelton::fuzz {

// Whatever is asked of it, it gives: where the bytes have come to their end, zeros and nothing.
// Threads: one. Owns: nothing; the bytes outlive it.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  absl::string_view Take(size_t count) {
    const absl::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  uint8_t TakeByte() {
    const absl::string_view taken = Take(1);
    return taken.empty() ? 0 : static_cast<uint8_t>(taken[0]);
  }
  // Two bytes that say how many follow, the lower one first, and those.
  absl::string_view TakeChunk() {
    const size_t low = TakeByte();
    return Take(low + 256 * size_t{TakeByte()});
  }
  absl::string_view TakeRest() { return Take(rest_.size()); }

 private:
  absl::string_view rest_;
};

// What TakeByte and TakeChunk take apart, for corpora.
inline std::string Byte(uint8_t value) { return std::string(1, static_cast<char>(value)); }
inline std::string Chunk(absl::string_view bytes) {
  return Byte(static_cast<uint8_t>(bytes.size())) + Byte(static_cast<uint8_t>(bytes.size() >> 8)) +
         std::string(bytes);
}

}  // namespace pelton::fuzz

#endif  // PELTON_TESTS_FUZZ_INPUT_H_
