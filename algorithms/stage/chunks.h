// How a tensor is shared out among ranks.
#ifndef PELTON_ALGORITHMS_STAGE_CHUNKS_H_
#define PELTON_ALGORITHMS_STAGE_CHUNKS_H_

#include <algorithm>
#include <cstdint>

namespace pelton {

// A chunk a rank, one after the other, all of the same count but for the last ones, which are
// shorter or empty: ceil(count / ranks), rounded up to whole cache lines.
// Threads: a value. Owns: nothing.
class Chunks {
 public:
  static constexpr uint64_t kAlignmentCount = 32;

  Chunks(uint64_t count, int32_t ranks) : count_(count) {
    const auto parts = static_cast<uint64_t>(ranks);
    const uint64_t share = (count + parts - 1) / parts;
    largest_ = (share + kAlignmentCount - 1) / kAlignmentCount * kAlignmentCount;
  }

  // Units of all: elements.
  uint64_t largest_count() const { return largest_; }
  uint64_t BeginOf(int32_t rank) const {
    return std::min(count_, static_cast<uint64_t>(rank) * largest_);
  }
  uint64_t CountOf(int32_t rank) const { return BeginOf(rank + 1) - BeginOf(rank); }

 private:
  uint64_t count_;
  uint64_t largest_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_CHUNKS_H_
