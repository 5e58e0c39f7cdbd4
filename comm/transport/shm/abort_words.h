// The words by which ranks end a communicator, and take their memory back from it.
#ifndef PELTON_COMM_TRANSPORT_SHM_ABORT_WORDS_H_
#define PELTON_COMM_TRANSPORT_SHM_ABORT_WORDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/actor/sync_policy.h"

namespace pelton::shm {

inline constexpr size_t kCacheLineBytes = 64;

// Whether somebody has ended the communicator, and whether the reason can be read. It never goes
// back, so that no rank forgets an abort that it has seen.
// Threads: any, of any process. Owns: nothing; it lies in shared memory, which is 0 at first.
template <typename Sync>
class BasicAbortState {
 public:
  // True for the first one only, who then writes the reason and calls Finish. It is thrown at once.
  bool Begin() {
    uint32_t none = kNone;
    return state_.compare_exchange_strong(none, kWriting);
  }
  void Finish() { state_.store(kReady); }

  bool is_thrown() const { return state_.load() != kNone; }
  // Whether the reason is there. It may never come, where a process dies between Begin and Finish.
  bool is_ready() const { return state_.load() == kReady; }

 private:
  static constexpr uint32_t kNone = 0;
  static constexpr uint32_t kWriting = 1;
  static constexpr uint32_t kReady = 2;

  typename Sync::template Atomic<uint32_t> state_{kNone};
};

// One rank's part in OWN-1: `busy_` says whether it is in others' memory, `has_closed_` that its
// own memory is its own again.
//
// Why nobody uses memory that its owner has back. A rank first enters and then looks whether it may
// (is_closed() of the owner, or an abort); the owner first throws the abort and closes, and then
// looks whether the other is in. All four are sequentially consistent, so that one of the two sees
// the other: either the rank finds that it may not, or the owner finds it busy. Leave has release,
// and the owner's look takes it over, so that an owner that finds the other idle also finds all
// that this one has written, and no read of the other comes later.
// board_model_test.cc runs this in every order.
//
// Threads: Enter and Leave by the rank that it belongs to; the others by any, of any process.
// Owns: nothing; it lies in shared memory, which is 0 at first.
template <typename Sync>
class BasicMemoryGate {
 public:
  enum Busy : uint32_t { kIdle, kReading, kWriting };

  void Enter(Busy how) { busy_.store(how); }
  void Leave() { busy_.store(kIdle, std::memory_order_release); }
  uint32_t busy() const { return busy_.load(); }
  void Close() { has_closed_.store(1); }
  bool is_closed() const { return has_closed_.load() != 0; }

 private:
  alignas(kCacheLineBytes) typename Sync::template Atomic<uint32_t> busy_{kIdle};
  alignas(kCacheLineBytes) typename Sync::template Atomic<uint32_t> has_closed_{0};
};

using AbortState = BasicAbortState<internal::RealSync>;
using MemoryGate = BasicMemoryGate<internal::RealSync>;

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_ABORT_WORDS_H_
