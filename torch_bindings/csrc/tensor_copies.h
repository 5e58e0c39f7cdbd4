// Copies of PyTorch's tensors that are made beside training.
#ifndef PELTON_TORCH_BINDINGS_CSRC_TENSOR_COPIES_H_
#define PELTON_TORCH_BINDINGS_CSRC_TENSOR_COPIES_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/memory/copy_beside.h"

namespace pelton::torch_bindings {

// Keeps what is copied, and where to. Threads: as CopyBeside. Owns: the tensors' memory.
class TensorCopies {
 public:
  // Each source and its first byte in the target.
  using Parts = std::vector<std::pair<at::Tensor, uint64_t>>;

  // Whether a tensor lies in memory of PyTorch's own allocator, without gaps. Memory of another
  // kind has an owner that looks for it (shared memory's), or an owner that is not known here.
  static bool MayCopy(const at::Tensor& tensor);

  // Begins to copy `parts` into `target`. The memory of a tensor is kept for as long as it is
  // copied, whatever becomes of the tensor. Errors (thrown): InvalidArgument: a source may not be
  // copied, or does not fit; FailedPrecondition: in a forked child.
  void Begin(const Parts& parts, const at::Tensor& target);
  bool is_copied() const { return copies_.is_copied(); }
  // Waits for the copies, and forgets them; the first source that was written to meanwhile. Blocks:
  // until they are made, or `deadline`. Errors (thrown): those of CopyBeside::Wait.
  std::optional<size_t> Finish(absl::Time deadline);
  // Forgets what was begun. Idempotent.
  void Abandon();

 private:
  // Kept by the storage and by the code that copies it: a storage that gets other memory meanwhile
  // (share_memory_, which hands a tensor to another process; resize_) lets go of what it has.
  using SharedMemory = std::shared_ptr<at::DataPtr>;

  static void DropShare(void* share);
  static SharedMemory ShareOf(const at::Tensor& tensor);

  std::vector<SharedMemory> memory_;
  at::Tensor target_;
  CopyBeside copies_;  // goes first
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_TENSOR_COPIES_H_
