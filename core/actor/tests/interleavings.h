// Runs a small program of a few threads in every order, and with every value that a load may see.
#ifndef PELTON_CORE_ACTOR_TESTS_INTERLEAVINGS_H_
#define PELTON_CORE_ACTOR_TESTS_INTERLEAVINGS_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/time/time.h"
#include "core/base/sync.h"

namespace pelton::interleavings {

// One run's program. Its objects are made before it runs, on no thread.
// Threads: a value. Owns: what its functions hold.
struct Program {
  static constexpr size_t kNobody = ~size_t{0};

  std::vector<std::function<void()>> threads;
  // Which thread may stop for ever after any of its steps, as that of a process which is killed
  // does. What lies on its stack is destroyed when the run is over, and must not store anything
  // then.
  size_t mortal = kNobody;
  std::function<void()> at_end = [] {};  // after all of them, with everything visible
};

// Threads: a value. Owns: its text.
struct Outcome {
  uint64_t runs = 0;
  // What went wrong in the first run where something did; "": nothing, in any.
  std::string error;
};

// Calls `make` for each run until all have been tried. An error of a run is what Fail says, that
// every thread sleeps, a data race on a Plain, or that a run has no end.
//
// The memory: each atomic has all values it ever had, in one order. A thread has a view, how old a
// value of each atomic it may still see. A store with release hands its thread's view on, a load
// with acquire takes it over; read-modify-writes see the newest value. Operations of order seq_cst
// have one order, the run's: such a load sees no older value of its atomic than one before it has
// stored or seen. It says nothing of other atomics, so that a store with release and then a load
// with seq_cst may pass each other, as in C++ and on processors. Fences also meet in one common
// view of all atomics. Not modelled: a load that sees a store which comes later in the run, a
// compare-and-swap that fails for no reason, and a wait that ends for no reason or by its deadline.
//
// With `most_preemptions`, only runs in which a thread that could go on gives way that often at
// most: for programs with too many orders.
Outcome Explore(const std::function<Program()>& make,
                int most_preemptions = std::numeric_limits<int>::max());

// Ends the run. To be called in a run.
[[noreturn]] void Fail(const std::string& what);

// Which atomic, and what its threads do with it. All in the current run.
using Location = uint32_t;
Location NewLocation(uint64_t value);
Location NewPlainLocation();
uint64_t Load(Location location, std::memory_order order);
void Store(Location location, uint64_t value, std::memory_order order);
// The value before; `change` gets it and gives the new one, or false for none.
uint64_t Change(Location location, const std::function<bool(uint64_t&)>& change,
                std::memory_order order);
void Fence();
// For a loop that looks without sleeping and changes nothing: after a look in vain, waits until
// another value can be seen. Nobody's look is lost by that, because a thread may also be late with
// its first one. That no thread writes any more is an error.
void AwaitWrite();
// Waits until that thread of the program is over, and then sees all that it has done, as whoever
// finds a socket closed by the kernel does. True: it was killed.
bool AwaitEnd(size_t thread);
// Whether that thread was killed, as a call of the kernel that names its process finds out. Says
// nothing of what it has done.
bool HasDied(size_t thread);
void Sleep(Location location, uint64_t expected);
void WakeSleepers(Location location, int count);
// Memory without synchronisation of its own. It is a race to read what another thread has written,
// or to write what another one has written or read, without having seen anything that came after
// that.
void Touch(Location location, bool writes);

// In place of std::atomic. Threads: the run's. Owns: nothing.
template <typename T>
class Atomic {
 public:
  Atomic(T value) : location_(NewLocation(Bits(value))) {}  // NOLINT: as std::atomic

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    return Value(Load(location_, order));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    Store(location_, Bits(value), order);
  }
  T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
    return Update([=](T) { return value; }, order);
  }
  T fetch_add(T by, std::memory_order order = std::memory_order_seq_cst) {
    return Update([=](T old) { return static_cast<T>(old + by); }, order);
  }
  T fetch_sub(T by, std::memory_order order = std::memory_order_seq_cst) {
    return Update([=](T old) { return static_cast<T>(old - by); }, order);
  }
  T fetch_and(T bits, std::memory_order order = std::memory_order_seq_cst) {
    return Update([=](T old) { return static_cast<T>(old & bits); }, order);
  }
  T fetch_or(T bits, std::memory_order order = std::memory_order_seq_cst) {
    return Update([=](T old) { return static_cast<T>(old | bits); }, order);
  }
  bool compare_exchange_strong(T& expected, T desired,
                               std::memory_order order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_relaxed) {
    bool is_equal = false;
    const uint64_t old = Change(
        location_,
        [&](uint64_t& bits) {
          is_equal = bits == Bits(expected);
          if (is_equal) bits = Bits(desired);
          return is_equal;
        },
        order);
    if (!is_equal) expected = Value(old);
    return is_equal;
  }
  bool compare_exchange_weak(T& expected, T desired,
                             std::memory_order order = std::memory_order_seq_cst,
                             std::memory_order = std::memory_order_relaxed) {
    return compare_exchange_strong(expected, desired, order);
  }
  Location location() const { return location_; }

 private:
  static uint64_t Bits(T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(value));
    return bits;
  }
  static T Value(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  template <typename F>
  T Update(F change, std::memory_order order) {
    return Value(Change(
        location_,
        [&](uint64_t& bits) {
          bits = Bits(change(Value(bits)));
          return true;
        },
        order));
  }

  const Location location_;
};

// In place of RealSync (core/actor/sync_policy.h).
// Threads: a name for functions. Owns: nothing.
struct ModelSync {
  template <typename T>
  using Atomic = interleavings::Atomic<T>;
  // Nobody's time runs out: a lost wake-up shows as threads that sleep for ever.
  static void Wait(const Atomic<uint32_t>* word, uint32_t expected, absl::Duration, FutexScope) {
    Sleep(word->location(), expected);
  }
  static void Wake(const Atomic<uint32_t>* word, int count, FutexScope) {
    WakeSleepers(word->location(), count);
  }
};

// Orders nothing, whatever order is asked for, so that a program which needs one goes wrong.
// Threads: a name for functions. Owns: nothing.
struct RelaxedSync : ModelSync {
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    using Order = std::memory_order;
    static constexpr Order kRelaxed = std::memory_order_relaxed;
    using Base::Base;

    T load(Order = kRelaxed) const { return Base::load(kRelaxed); }
    void store(T value, Order = kRelaxed) { Base::store(value, kRelaxed); }
    T fetch_add(T by, Order = kRelaxed) { return Base::fetch_add(by, kRelaxed); }
    bool compare_exchange_strong(T& expected, T desired, Order = kRelaxed, Order = kRelaxed) {
      return Base::compare_exchange_strong(expected, desired, kRelaxed);
    }
    bool compare_exchange_weak(T& expected, T desired, Order = kRelaxed, Order = kRelaxed) {
      return Base::compare_exchange_strong(expected, desired, kRelaxed);
    }
  };
};

// Memory that one thread at a time uses. Threads: the run's. Owns: the value.
template <typename T>
class Plain {
 public:
  Plain() : Plain(T{}) {}
  explicit Plain(T value) : location_(NewPlainLocation()), value_(value) {}
  T Get() const {
    Touch(location_, /*writes=*/false);
    return value_;
  }
  void Set(T value) {
    Touch(location_, /*writes=*/true);
    value_ = value;
  }

 private:
  const Location location_;
  T value_;
};

}  // namespace pelton::interleavings

#endif  // PELTON_CORE_ACTOR_TESTS_INTERLEAVINGS_H_
