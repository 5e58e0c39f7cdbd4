// Sizes in whole units.
#ifndef PELTON_CORE_BASE_ROUND_UP_H_
#define PELTON_CORE_BASE_ROUND_UP_H_

#include <cstdint>

namespace pelton {

// The least multiple of `unit`, which is not 0, that is not below `value`.
inline constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace pelton

#endif  // PELTON_CORE_BASE_ROUND_UP_H_
