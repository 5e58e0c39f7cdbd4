// What a seed chooses in a test.
#ifndef PELTON_CORE_BASE_DRAWS_H_
#define PELTON_CORE_BASE_DRAWS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/split_mix.h"

namespace pelton {

// Numbers that a seed draws, one after the other, the same on every machine.
// Threads: one. Owns: how many were drawn.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}

  // From 0 on. Requires: `end` is above 0.
  uint64_t Below(uint64_t end) { return SplitMix(seed_, drawn_++) % end; }
  bool OneIn(uint64_t count) { return Below(count) == 0; }

  // Puts the elements into an order that is as likely as any other one.
  template <typename Container>
  void Shuffle(Container& elements) {
    for (size_t i = elements.size(); i > 1; --i) {
      std::swap(elements[i - 1], elements[static_cast<size_t>(Below(i))]);
    }
  }

 private:
  const uint64_t seed_;
  uint64_t drawn_ = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_DRAWS_H_
