// A thread's floating-point state, where ranks must come to the same bits.
#ifndef PELTON_CORE_BASE_FLOATING_POINT_H_
#define PELTON_CORE_BASE_FLOATING_POINT_H_

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace pelton {

// Computes as a new process does, for a scope: rounds to nearest and keeps denormals. Which thread
// of a rank computes is chance, and each thread has a state of its own, which PyTorch's
// set_flush_denormal changes, or the import of a library that was linked with -ffast-math. Costs a
// look, and two writes where the state is another. Threads: the one that made it. Owns: nothing.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() : before_(Read()) {
    if (changes()) Write(before_ & ~kChanges);
  }
  ~DefaultFloatingPoint() {
    if (changes()) Write(before_);
  }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
#if defined(__x86_64__) || defined(__i386__)
  // Of MXCSR: flush to zero, the direction of rounding, denormals are zeros.
  static constexpr uint64_t kChanges = 0x8000 | 0x6000 | 0x0040;
  static uint64_t Read() { return _mm_getcsr(); }
  static void Write(uint64_t state) { _mm_setcsr(static_cast<unsigned>(state)); }
#elif defined(__aarch64__)
  // Of FPCR: flush to zero, the direction of rounding, flush to zero of float16.
  static constexpr uint64_t kChanges = (1 << 24) | (3 << 22) | (1 << 19);
  static uint64_t Read() {
    uint64_t state;
    asm volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void Write(uint64_t state) { asm volatile("msr fpcr, %0" : : "r"(state)); }
#else
  static constexpr uint64_t kChanges = 0;
  static uint64_t Read() { return 0; }
  static void Write(uint64_t) {}
#endif
  bool changes() const { return (before_ & kChanges) != 0; }

  const uint64_t before_;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_FLOATING_POINT_H_
