// What a rank shows the others of its collectives: its posts, and how far the work on them is.
#ifndef PELTON_COMM_TRANSPORT_SHM_BOARD_H_
#define PELTON_COMM_TRANSPORT_SHM_BOARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/transport/shm/abort_words.h"
#include "core/actor/sync_policy.h"

namespace pelton::shm {

// Memory that its users order by the words beside it. Threads: as these say. Owns: the value.
template <typename T>
class SharedCell {
 public:
  const T& Get() const { return value_; }
  void Set(const T& value) { value_ = value; }

 private:
  T value_;
};

// A count carries the collective's sequence number in its upper half, so that a late reader knows
// that the count is another collective's.
//
// Why two posts suffice, and nobody reads one that is being written anew. A rank posts sequence s
// after it has completed s - 1, which takes every rank's arrival there. A rank arrives at s - 1
// when it is through with s - 2, whose place the post of s takes. Post writes the post and both
// counts before `arrived_`, with which they become visible; whoever reads them has seen the
// arrival.
//
// Why each task is done once. Claim takes the next number by a compare-and-swap of the whole word,
// so that it fails where the owner has gone on to another sequence. The owner goes on when all
// tasks are finished, so nobody adds to the count of a sequence that is over. A reader that finds
// another sequence there knows that the owner has seen the end of its own, and sees what that owner
// saw, because the count begins anew with release.
// An owner that keeps its tasks arrives with all of them given out, so that no Claim succeeds, and
// counts them by itself.
// board_model_test.cc runs this in every order.
//
// Threads: Arrive by the rank that it belongs to; the others by any, of any process. Owns: nothing;
// it lies in shared memory, which is 0 at first.
template <typename Sync, typename Post>
class BasicBoard {
 public:
  static constexpr uint64_t kDepth = 2;

  // Whose tasks the owner's are: everybody's who claims them, or its own alone.
  enum class TasksOf : uint8_t { kAnyRank, kOwner };

  // Arrives at `sequence`, with `post`, and with all that the caller has written for it.
  template <typename T>
  void Arrive(uint64_t sequence, const T& post, TasksOf tasks_of = TasksOf::kAnyRank) {
    posts_[sequence % kDepth].Set(post);
    const uint64_t given_out = tasks_of == TasksOf::kOwner ? kAll : 0;
    claimed_.store(Tagged(sequence, given_out), std::memory_order_relaxed);
    // A late reader of the sequence before may learn of its end by this.
    finished_.store(Tagged(sequence, 0), std::memory_order_release);
    arrived_.store(sequence);  // shows all of the above
  }
  bool HasArrived(uint64_t sequence) const { return arrived_.load() >= sequence; }
  // Requires: it has arrived, and not everybody is through with `sequence`.
  decltype(auto) PostOf(uint64_t sequence) const { return posts_[sequence % kDepth].Get(); }

  // Gives out the next of the owner's `count` tasks; nothing if there is none left.
  std::optional<uint64_t> Claim(uint64_t sequence, uint64_t count) {
    uint64_t word = claimed_.load();
    while (TagOf(word) == static_cast<uint32_t>(sequence) && CountOf(word) < count) {
      if (claimed_.compare_exchange_weak(word, word + 1)) return CountOf(word);
    }
    return std::nullopt;
  }
  // Whether the owner does its tasks of `sequence` itself.
  bool KeepsTasks(uint64_t sequence) const { return claimed_.load() == Tagged(sequence, kAll); }
  // One task more is done. What it wrote is visible to whoever finds that all are.
  void MarkFinished() { finished_.fetch_add(1); }
  // Whether the owner's `count` tasks are done.
  bool HasFinished(uint64_t sequence, uint64_t count) const {
    const uint64_t word = finished_.load();
    // Another tag: that rank has seen the end of this one, and gone on.
    return TagOf(word) != static_cast<uint32_t>(sequence) || CountOf(word) >= count;
  }

 private:
  static constexpr uint64_t Tagged(uint64_t sequence, uint64_t count) {
    return sequence << 32 | count;
  }
  static constexpr uint64_t kAll = 0xFFFFFFFF;
  static constexpr uint32_t TagOf(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
  static constexpr uint64_t CountOf(uint64_t word) { return word & kAll; }

  template <typename T>
  using Atomic = typename Sync::template Atomic<T>;
  // Every word has a cache line of its own.
  alignas(kCacheLineBytes) Atomic<uint64_t> arrived_{0};   // sequence of its latest post
  alignas(kCacheLineBytes) Atomic<uint64_t> claimed_{0};   // tasks given out, tagged
  alignas(kCacheLineBytes) Atomic<uint64_t> finished_{0};  // tasks done, tagged
  alignas(kCacheLineBytes) Post posts_[kDepth];
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_BOARD_H_
