// One edge of a window: the protocol by which a writer and an owner exchange whole values.
#ifndef PELTON_COMM_WINDOW_INLET_H_
#define PELTON_COMM_WINDOW_INLET_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/actor/sync_policy.h"

namespace pelton {

// Says which of four buffers holds the inlet's value, and who uses which of the others. All of it
// is one word, so that every change is one compare-and-swap, and a value, its version and its
// weight p come and go together. No call waits.
//
//   current  what a reader is to see: always one of the buffers
//   is_zero  the value is 0, whatever `current` holds: a reset, which touches no memory
//   has_no_p the same of p
//   version  values put since the owner last looked
//   draft    the writer fills it: nobody else looks at it
//   base     the writer reads it, to add to it
//   fill     the owner fills it (a get)
//   reading  the owner reads it
//
// A buffer in any of these places is not written by anybody but its filler, and a value that was
// published is never written again until it is in none of them. A writer takes a draft while its
// own places are empty, so `current`, `fill` and `reading` hold three buffers at most, and a fourth
// is free; the same holds for the owner. So neither ever waits for the other. A writer or owner
// that dies leaves its places taken for good, which costs the other nothing.
//
// A sum is published only while `current` and `is_zero` are those that it was made of: `base` keeps
// that buffer from being filled anew, so it cannot have gone and come back. An owner that takes the
// value meanwhile (a reset) makes the publication fail once, and the writer then adds to zero,
// which no reset changes any more.
//
// Threads: one writer and one owner, in different processes. Owns: nothing; it lies in shared
// memory. `Cell` is a double with Get and Set.
template <typename Sync, typename Cell>
class BasicInlet {
 public:
  static constexpr int kBuffers = 4;

  // Threads: a value. Owns: nothing.
  struct Draft {
    int buffer = 0;
    int base = 0;          // the buffer to add to
    bool is_zero = false;  // add to nothing instead
  };
  // What the owner has taken, until Release. Threads: a value. Owns: nothing.
  struct View {
    int buffer = 0;
    bool is_zero = false;
    double p = 0;
    uint32_t version = 0;
  };
  // What the owner's look leaves behind. Threads: a value. Owns: nothing.
  struct Leave {
    bool resets = false;    // the value becomes 0
    bool resets_p = false;  // p becomes 0
  };

  // `is_zero`: else buffer 0 holds the first value. No p, no version.
  explicit BasicInlet(bool is_zero) : word_(Pack({.is_zero = is_zero})) {}

  // The writer -----------------------------------------------------------------------------------

  // Takes a buffer to fill, and what to add to. Drops what an earlier call took.
  Draft Begin() {
    uint64_t seen = word_.load(std::memory_order_acquire);
    while (true) {
      State next = Unpack(seen);
      next.draft = kNone;
      next.base = kNone;
      next.draft = FreeIn(next);
      next.base = next.current;
      if (Swap(seen, next)) return {next.draft, next.base, next.is_zero};
    }
  }
  // The draft replaces the value; p too, where it is given. One version more.
  void Put(const Draft& draft, std::optional<double> p) {
    uint64_t seen = word_.load(std::memory_order_acquire);
    while (true) {
      State next = Unpack(seen);
      if (!p.has_value() && next.base != next.current) {  // holds its p while it is copied
        next.base = next.current;
        (void)Swap(seen, next);
        seen = word_.load(std::memory_order_acquire);
        continue;
      }
      p_[draft.buffer].Set(p.has_value() ? *p : PIn(next, next.base));
      if (Swap(seen, Published(next, draft.buffer))) return;
    }
  }
  // The draft, made of its base, becomes the value, and `p` is added. Nothing: somebody changed the
  // value meanwhile; else what to make the same draft of. No version.
  std::optional<Draft> Add(const Draft& draft, double p) {
    uint64_t seen = word_.load(std::memory_order_acquire);
    while (true) {
      State next = Unpack(seen);
      if (next.current != draft.base || next.is_zero != draft.is_zero) {
        next.base = next.current;
        if (Swap(seen, next)) return Draft{draft.buffer, next.base, next.is_zero};
        continue;
      }
      p_[draft.buffer].Set(PIn(next, draft.base) + p);
      const uint32_t version = next.version;
      next = Published(next, draft.buffer);
      next.version = version;
      if (Swap(seen, next)) return std::nullopt;
    }
  }

  // The owner ------------------------------------------------------------------------------------

  // The value as it is now, to be read until Release. Every look sets the version to 0.
  View Take(const Leave& leave) {
    uint64_t seen = word_.load(std::memory_order_acquire);
    while (true) {
      const State before = Unpack(seen);
      State next = before;
      next.reading = next.current;
      next.is_zero = next.is_zero || leave.resets;
      next.has_no_p = next.has_no_p || leave.resets_p;
      next.version = 0;
      if (!Swap(seen, next)) continue;
      return {before.current, before.is_zero, PIn(before, before.current), before.version};
    }
  }
  void Release() {
    uint64_t seen = word_.load(std::memory_order_acquire);
    while (true) {
      State next = Unpack(seen);
      next.reading = kNone;
      if (Swap(seen, next)) return;
    }
  }
  // Takes a buffer that the owner fills itself. Nothing is being read.
  int BeginFill() {
    uint64_t seen = word_.load(std::memory_order_acquire);
    while (true) {
      State next = Unpack(seen);
      next.fill = kNone;
      next.fill = FreeIn(next);
      if (Swap(seen, next)) return next.fill;
    }
  }
  // It replaces the value; p stays. One version more.
  void Fill(int buffer) {
    uint64_t seen = word_.load(std::memory_order_acquire);
    while (true) {
      State next = Unpack(seen);
      if (next.reading != next.current) {
        next.reading = next.current;
        (void)Swap(seen, next);
        seen = word_.load(std::memory_order_acquire);
        continue;
      }
      p_[buffer].Set(PIn(next, next.reading));
      next.current = buffer;
      next.is_zero = false;
      next.has_no_p = false;
      next.fill = kNone;
      next.reading = kNone;
      if (next.version != kMostVersions) ++next.version;
      if (Swap(seen, next)) return;
    }
  }
  void ForgetVersion() {
    uint64_t seen = word_.load(std::memory_order_acquire);
    while (true) {
      State next = Unpack(seen);
      next.version = 0;
      if (Swap(seen, next)) return;
    }
  }
  uint32_t version() const { return Unpack(word_.load(std::memory_order_acquire)).version; }
  // Whether the value is 0 because it was never written, or the owner has collected it since.
  bool is_zero() const { return Unpack(word_.load(std::memory_order_acquire)).is_zero; }

 private:
  static constexpr int kNone = 7;
  static constexpr uint32_t kMostVersions = std::numeric_limits<uint32_t>::max();

  struct State {
    int current = 0;
    int draft = kNone;
    int base = kNone;
    int fill = kNone;
    int reading = kNone;
    bool is_zero = false;
    bool has_no_p = true;
    uint32_t version = 0;
  };

  static uint64_t Pack(const State& state) {
    return static_cast<uint64_t>(state.current) | static_cast<uint64_t>(state.draft) << 3 |
           static_cast<uint64_t>(state.base) << 6 | static_cast<uint64_t>(state.fill) << 9 |
           static_cast<uint64_t>(state.reading) << 12 | uint64_t{state.is_zero} << 15 |
           uint64_t{state.has_no_p} << 16 | uint64_t{state.version} << 32;
  }
  static State Unpack(uint64_t word) {
    const auto place = [word](int shift) { return static_cast<int>(word >> shift & 7); };
    return {.current = place(0),
            .draft = place(3),
            .base = place(6),
            .fill = place(9),
            .reading = place(12),
            .is_zero = (word >> 15 & 1) != 0,
            .has_no_p = (word >> 16 & 1) != 0,
            .version = static_cast<uint32_t>(word >> 32)};
  }
  // The lowest one: a buffer that was never used takes no memory.
  static int FreeIn(const State& state) {
    int buffer = 0;
    while (buffer == state.current || buffer == state.draft || buffer == state.base ||
           buffer == state.fill || buffer == state.reading) {
      ++buffer;
    }
    return buffer;
  }
  static State Published(State state, int buffer) {
    state.current = buffer;
    state.is_zero = false;
    state.has_no_p = false;
    state.draft = kNone;
    state.base = kNone;
    if (state.version != kMostVersions) ++state.version;
    return state;
  }
  double PIn(const State& state, int buffer) const { return state.has_no_p ? 0 : p_[buffer].Get(); }
  // `seen` becomes what is there, if that is another word.
  bool Swap(uint64_t& seen, const State& next) {
    return word_.compare_exchange_strong(seen, Pack(next), std::memory_order_acq_rel,
                                         std::memory_order_acquire);
  }

  typename Sync::template Atomic<uint64_t> word_;
  Cell p_[kBuffers] = {Cell(0), Cell(0), Cell(0), Cell(0)};
};

// A number that its user orders. Threads: a value. Owns: nothing.
class PlainCell {
 public:
  explicit PlainCell(double value) : value_(value) {}
  double Get() const { return value_; }
  void Set(double value) { value_ = value; }

 private:
  double value_;
};

using Inlet = BasicInlet<internal::RealSync, PlainCell>;

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_INLET_H_
