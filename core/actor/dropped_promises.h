// What becomes of promises that are dropped in an actor's turn.
#ifndef PELTON_CORE_ACTOR_DROPPED_PROMISES_H_
#define PELTON_CORE_ACTOR_DROPPED_PROMISES_H_

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

namespace pelton::internal {

// Lives for as long as a turn, and keeps the promises that are dropped meanwhile until it is known
// why. A handler that throws drops what it owes before anybody has caught what it has thrown.
// Threads: the one that made it. Owns: a count on the state of each of them.
class DroppedPromises {
 public:
  // Completes the future behind `state` with kAborted, and takes over the count on it.
  using Complete = void (*)(void* state, absl::string_view why);
  static constexpr absl::string_view kUnexplained = "the promise was dropped without a result";

  DroppedPromises() : outer_(Swap(this)) {}
  ~DroppedPromises() {
    Answer(kUnexplained);
    Swap(outer_);
  }
  DroppedPromises(const DroppedPromises&) = delete;
  DroppedPromises& operator=(const DroppedPromises&) = delete;

  // Those of this thread's turn; null where it is in none.
  static DroppedPromises* Current() { return current_; }
  // For threads of a simulation, which share a real one: the former ones.
  static DroppedPromises* Swap(DroppedPromises* mine) {
    DroppedPromises* const former = current_;
    current_ = mine;
    return former;
  }

  bool empty() const { return dropped_.empty(); }
  void Add(void* state, Complete complete) { dropped_.push_back({state, complete}); }
  void Answer(absl::string_view why) {
    // By index: an answer may have what waited for it drop more.
    for (size_t i = 0; i < dropped_.size(); ++i) dropped_[i].complete(dropped_[i].state, why);
    dropped_.clear();
  }

 private:
  struct Dropped {
    void* state;
    Complete complete;
  };

  static inline constinit thread_local DroppedPromises* current_ = nullptr;
  DroppedPromises* const outer_;
  absl::InlinedVector<Dropped, 2> dropped_;
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_DROPPED_PROMISES_H_
