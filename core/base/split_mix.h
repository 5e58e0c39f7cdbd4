// Numbers that look random and are the same on every machine.
#ifndef PELTON_CORE_BASE_SPLIT_MIX_H_
#define PELTON_CORE_BASE_SPLIT_MIX_H_

#include <cstdint>

namespace pelton {

// Number `index` of the sequence that `seed` begins: neighbouring seeds and indices give numbers
// that have nothing in common.
// Source: Steele et al., Fast Splittable Pseudorandom Number Generators, OOPSLA 2014 (splitmix64).
constexpr uint64_t SplitMix(uint64_t seed, uint64_t index) {
  uint64_t x = seed + (index + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace pelton

#endif  // PELTON_CORE_BASE_SPLIT_MIX_H_
