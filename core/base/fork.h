// What holds in a process that was forked from one in which the runtime works.
//
// Such a child has the parent's memory and open files, but none of its threads: what it did with
// them would be said in the parent's name, and what it waited for would never come. So nothing of
// the runtime works there, and nothing is destroyed.
#ifndef PELTON_CORE_BASE_FORK_H_
#define PELTON_CORE_BASE_FORK_H_

#include <cstddef>
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

// Children let go of `socket`, so that its other end notices this process's end at once although
// children live on. Which socket it is counts: a number that is closed and given to another one is
// left alone. Threads: any.
void CloseInChildren(int socket);
// The same for every TCP socket with `port` at one of its ends, now and later.
void ClosePortInChildren(uint16_t port);

// What else is done around a fork, by the thread that forks: `before` it, then `in_parent` in the
// parent and `in_child` in the child. `is_first`: the child's parent has called WatchForks, and is
// no child of one that had. Threads: a value. Owns: nothing.
struct ForkSteps {
  void (*before)() = nullptr;
  void (*in_parent)() = nullptr;
  void (*in_child)(bool is_first) = nullptr;
};
// Has every fork take `steps` from now on, also where WatchForks was never called; for ever, so
// call it once for each. Threads: any.
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

// Shared memory that the children of this process must leave alone.

// As long as it lives, every child that is forked after WatchForks gets a copy of its own of a
// mapping, at the same address: what the child writes reaches nobody else. It costs no copy,
// because the kernel copies a page at its first write. A child in which the kernel refuses that
// keeps the mapping as it was, as with a Region.
// Threads: any. Owns: nothing; the mapping and the descriptor outlive it.
class PrivateInChildren {
 public:
  // `size_bytes` at `data` are the beginning of the file that is open as `descriptor`.
  PrivateInChildren(void* data, size_t size_bytes, int descriptor);
  ~PrivateInChildren();
  PrivateInChildren(const PrivateInChildren&) = delete;
  PrivateInChildren& operator=(const PrivateInChildren&) = delete;

 private:
  friend class PrivateInChildrenTable;

  void* const data_;
  const size_t size_bytes_;
  const int descriptor_;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_FORK_H_
