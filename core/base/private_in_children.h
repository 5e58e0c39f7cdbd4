// Shared memory that the children of this process must leave alone.
#ifndef PELTON_CORE_BASE_PRIVATE_IN_CHILDREN_H_
#define PELTON_CORE_BASE_PRIVATE_IN_CHILDREN_H_

#include <cstddef>

namespace pelton {

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

#endif  // PELTON_CORE_BASE_PRIVATE_IN_CHILDREN_H_
