// What holds in a process that was forked from one in which the runtime works.
//
// Such a child has the parent's memory and open files, but none of its threads: what it did with
// them would be said in the parent's name, and what it waited for would never come. So nothing of
// the runtime works there, and nothing is destroyed.
#ifndef PELTON_CORE_BASE_FORK_H_
#define PELTON_CORE_BASE_FORK_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace pelton {

// The runtime works in this process from now on: children that it forks are told apart. Idempotent.
// Threads: any.
void WatchForks();

// Whether this process was forked from one that had called WatchForks. Threads: any. Blocks: never.
bool IsForkedChild();
// Errors: FailedPrecondition: it was; says what to do.
absl::Status CheckNotForkedChild();

// Children let go of `socket`, so that its other end hears of this process's end at once although
// children live on. Which socket it is counts: a number that is closed and given to another one is
// left alone. Threads: any.
void CloseInChildren(int socket);
// The same for every TCP socket with `port` at one of its ends, now and later.
void ClosePortInChildren(uint16_t port);

// What else is done around a fork, by the thread that forks: `before` it, then `in_parent` in the
// parent and `in_child` in the child. `is_first`: the child's parent is a rank, and no child of
// one. Threads: a value. Owns: nothing.
struct ForkSteps {
  void (*before)() = nullptr;
  void (*in_parent)() = nullptr;
  void (*in_child)(bool is_first) = nullptr;
};
// Has every fork take `steps` once WatchForks was called; for ever, so call it once for each.
// Threads: any.
void AddForkSteps(ForkSteps steps);

// Destroys nothing in a forked child.
// Threads: a value. Owns: nothing.
template <typename T>
struct DeleteUnlessForked {
  DeleteUnlessForked() = default;
  DeleteUnlessForked(std::default_delete<T>) {}  // NOLINT: a plain owner may become such a one
  void operator()(T* object) const {
    if (!IsForkedChild()) delete object;
  }
};
template <typename T>
using ProcessPtr = std::unique_ptr<T, DeleteUnlessForked<T>>;

// The same for an object that several own.
template <typename T>
std::shared_ptr<T> MakeProcessShared(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), DeleteUnlessForked<T>());
}

}  // namespace pelton

#endif  // PELTON_CORE_BASE_FORK_H_
