// The windows that Python's one-sided operations work on.
#ifndef PELTON_TORCH_BINDINGS_CSRC_PYTHON_WINDOWS_H_
#define PELTON_TORCH_BINDINGS_CSRC_PYTHON_WINDOWS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/backend.h"
#include "backend/group_windows.h"
#include "comm/window/window.h"
#include "core/base/moving_deadline.h"

namespace pelton::torch_bindings {

// Memory of the host that a GPU reads and writes itself, for tensors that other processes reach.

// The storage of `tensor`, which is on a GPU, and with it every view of it, moves to shared memory
// of the host that the GPU has mapped: what kernels write there needs no copy to be seen by the
// host, and what the host writes, none to be seen by kernels that are launched after it. The result
// is the same memory as a tensor of the CPU; both keep it alive. A tensor that lies there already
// stays. Blocks: until the tensor is copied. Errors: InvalidArgument: it is not contiguous, or a
// part of other memory; Unimplemented: this GPU has other addresses for the host's memory; those of
// CUDA's runtime.
absl::StatusOr<at::Tensor> MoveToMappedMemory(const at::Tensor& tensor);

// A window with its tensor. Called without the GIL. Threads: as Window; the binding's caller sees
// to it. Owns: the window, and a hold on its tensor and on the memory that this had at first, which
// neighbours read; keeps the backend alive.
class PythonWindow {
 public:
  // Of each rank that takes part, its weight; ascending.
  using Neighbors = std::vector<Neighbor>;

  PythonWindow(std::unique_ptr<Window> window, at::Tensor tensor,
               std::shared_ptr<const void> memory, std::shared_ptr<Backend> backend)
      : backend_(std::move(backend)),
        memory_(std::move(memory)),
        window_(std::move(window)),
        tensor_(std::move(tensor)) {}

  const at::Tensor& tensor() const { return tensor_; }

  // All: Errors (thrown): those of Window, with the window's name.
  void Put(const at::Tensor& source, const Neighbors& destinations, double own_weight, bool with_p);
  void Accumulate(const at::Tensor& source, const Neighbors& destinations, double own_weight,
                  bool with_p);
  void Get(const Neighbors& sources);
  // `target`: none for in place.
  void Update(double own_weight, const Neighbors& sources, bool resets, bool with_p,
              const std::optional<at::Tensor>& target);
  std::vector<std::pair<int32_t, uint32_t>> Versions() const;
  double p() const { return window_->p(); }
  void Lock(int32_t peer, bool of_own);
  void Unlock(int32_t peer, bool of_own);

 private:
  void Check(const absl::Status& status, const char* call) const;
  MovingDeadline Deadline() const;
  WindowAccess Access(bool with_p) const;

  const std::shared_ptr<Backend> backend_;    // shared: as PythonWindows'
  const std::shared_ptr<const void> memory_;  // shared: with the tensor's storage
  const std::unique_ptr<Window> window_;
  const at::Tensor tensor_;
};

// The windows of a group's ranks. Threads: one at a time. Owns: what they are made with; keeps the
// backend alive.
class PythonWindows {
 public:
  // Collective. Errors (thrown): those of GroupWindows::Open.
  PythonWindows(std::shared_ptr<Backend> backend, const std::vector<int32_t>& ranks);
  PythonWindows(const PythonWindows&) = delete;
  PythonWindows& operator=(const PythonWindows&) = delete;

  // Collective. Where others may not read the tensor's memory, the tensor moves: its storage, and
  // with it every view, is in shared memory from then on. So does one of a GPU, which goes on to
  // use it there (mapped_memory.h); the window's tensor is then the same memory as one of the CPU.
  // Errors (thrown): those of CreateWindow and MoveToMappedMemory; ValueError: the tensor is not
  // contiguous.
  std::unique_ptr<PythonWindow> Create(const std::string& name, const at::Tensor& tensor,
                                       const std::vector<int32_t>& sources,
                                       const std::vector<int32_t>& destinations, bool zero_init);
  // Waits for all ranks. Errors (thrown): those of the communicator.
  void Barrier();
  // As GroupWindows::Close.
  void Close() { windows_->Close(); }

 private:
  std::shared_ptr<Backend> backend_;  // shared: any of Python's objects may be the last to go
  std::unique_ptr<GroupWindows> windows_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_PYTHON_WINDOWS_H_
