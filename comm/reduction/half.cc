#include "comm/reduction/half.h"

#include <bit>
#include <cmath>

namespace pelton {
namespace {

constexpr uint32_t kFloatExponent = 0x7f800000;
constexpr uint32_t kFloatMantissa = 0x007fffff;
constexpr uint32_t kFloatHiddenBit = 0x00800000;

// `value` without its last `shift` bits, rounded half to even.
uint32_t ShiftRightToEven(uint32_t value, uint32_t shift) {
  const uint32_t kept = value >> shift;
  const uint32_t rest = value & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  const bool round_up = rest > half || (rest == half && (kept & 1) != 0);
  return kept + (round_up ? 1 : 0);
}

}  // namespace

float FloatFromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | kFloatExponent | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 127 - 15) << 23) | (mantissa << 13));
}

float FloatFromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t Float16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & ~0x80000000u;
  if (magnitude > kFloatExponent) {
    return static_cast<uint16_t>(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
  }
  if (magnitude >= 0x47800000) return sign | 0x7c00;  // 65536 and more
  const uint32_t exponent = magnitude >> 23;
  if (exponent >= 127 - 14) {  // a normal float16; a carry into the exponent is the right result
    const uint32_t rebiased = magnitude - ((127u - 15) << 23);
    return static_cast<uint16_t>(sign | ShiftRightToEven(rebiased, 13));
  }
  const uint32_t shift = 126 - exponent;  // of the mantissa to units of 2^-24
  if (shift > 24) return sign;            // below half of the smallest denormal
  const uint32_t mantissa = (magnitude & kFloatMantissa) | kFloatHiddenBit;
  return static_cast<uint16_t>(sign | ShiftRightToEven(mantissa, shift));
}

uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~0x80000000u) > kFloatExponent) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>(ShiftRightToEven(bits, 16));
}

}  // namespace pelton
