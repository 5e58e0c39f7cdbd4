// Between PyTorch's tensors and the runtime's.
#ifndef PELTON_TORCH_BINDINGS_CSRC_TENSORS_H_
#define PELTON_TORCH_BINDINGS_CSRC_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/collectives.h"
#include "core/memory/cuda/cuda_queue.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/device_queue.h"
#include "core/memory/dtype.h"
#include "core/plan/plan.h"

namespace pelton::torch_bindings {

// Between PyTorch's devices and the runtime's.

// Whether the device's streams are CUDA's. A device of PyTorch's PrivateUse1 kind is taken for one:
// tests make such a device of their stand-in for a GPU.
bool IsGpu(const at::Device& device);

// Errors: InvalidArgument: names `what`, whose device is neither the host nor a GPU.
absl::StatusOr<Device> ToDevice(const at::Device& device, const std::string& what);

// The stream that is current for the GPU on the thread that asks.
CudaQueue::CallersStream CurrentStreamOf(const at::Device& device);

// A GPU's stream, which an operation runs on; none: the host's, which orders nothing.
using OnStream = std::optional<CudaStream>;
// As the functions of comm/collectives.h take it.
inline Stream* PointerTo(OnStream& stream) { return stream.has_value() ? &*stream : nullptr; }

// The stream on which a trainer works on tensors of a GPU, for another thread that works on them
// in turns with it: on a stream of its own that one would read before the trainer has written.
// Threads: Note: the trainer's; Get: any. Owns: nothing.
class TrainersStream {
 public:
  explicit TrainersStream(const at::Device& device) : device_(device) { Note(); }
  // What is current on this thread.
  void Note();
  c10::Stream Get() const;

 private:
  const at::Device device_;
  std::atomic<c10::StreamId> stream_;
};

// Errors: InvalidArgument: a type that no reduction knows, by name.
absl::StatusOr<DType> ToDType(at::ScalarType type);
at::ScalarType ToScalarType(DType dtype);

// The memory of a contiguous tensor, wherever it is. Errors: InvalidArgument: names `argument`, its
// layout or dtype; or it is a view that is negated or conjugated when it is read.
absl::StatusOr<Tensor> FlatAnywhere(const at::Tensor& tensor, const std::string& argument);
// The same of a CPU tensor. Errors: also InvalidArgument: it is on another device.
absl::StatusOr<Tensor> Flat(const at::Tensor& tensor, const std::string& argument);

// An uninitialised tensor in memory that the ranks of this host reach directly. Shape: `sizes`.
at::Tensor EmptyShared(at::IntArrayRef sizes, at::ScalarType type);

// The tensors of a model as the planner sees them.

// In registration order, each tensor once.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Where buckets are: on the tensors' device, or in the host's memory, where tensors of a device are
// copied to.
enum class BucketsAt { kHost, kTensors };

// One spec per tensor; those of two dimensions and more are matrices of [shape[0], rest]. Errors:
// InvalidArgument: there is none, or one is neither on the CPU nor on a GPU or of a dtype that
// cannot be communicated; names it.
absl::StatusOr<std::vector<TensorSpec>> SpecsOf(const NamedTensors& tensors, BucketsAt buckets);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_TENSORS_H_
