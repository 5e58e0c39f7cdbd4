// The operations that Python starts and waits for later.
#ifndef PELTON_TORCH_BINDINGS_CSRC_PYTHON_QUEUE_H_
#define PELTON_TORCH_BINDINGS_CSRC_PYTHON_QUEUE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "backend/backend.h"
#include "comm/group.h"
#include "comm/lane/lane.h"
#include "comm/neighbors.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/pipeline/weight_table.h"
#include "torch_bindings/csrc/c10d/call.h"
#include "torch_bindings/csrc/gathers.h"
#include "torch_bindings/csrc/python_handle.h"

namespace pelton::torch_bindings {

// What collectives of that name are compared by, in Operation::bucket: the same on every rank,
// machine and build. Another name may have the same number.
int32_t NumberOf(const std::string& name);

// A communicator of its own, whose collectives run in the order of their calls, and whose
// operations between neighbours run as their neighbours come (EDGE-1). Inputs are kept alive.
// Called without the GIL. Threads: any. Owns: its lane; keeps the backend alive.
class PythonQueue {
 public:
  using Handle = std::shared_ptr<PythonHandle>;
  using Table = std::shared_ptr<const WeightTable>;
  using Target = std::optional<at::Tensor>;

  // Opens it among the ranks of `group`, for tensors on `device`. Collective. Errors (thrown):
  // those of Backend::Open; InvalidArgument: the device is neither the CPU nor a GPU.
  PythonQueue(std::shared_ptr<Backend> backend, const Group& group, const at::Device& device);
  ~PythonQueue() { Close(); }
  PythonQueue(const PythonQueue&) = delete;
  PythonQueue& operator=(const PythonQueue&) = delete;

  // How a call is run. Threads: a value. Owns: its name.
  struct Run {
    // What ranks match operations between neighbours by, and compare collectives by; none: the
    // order of the calls.
    std::optional<std::string> name;
    bool waits = true;  // the handle is done when the call returns
    // What errors and reports call it; none: the operation's own name.
    std::optional<std::string> shown_as = {};
  };

  // All: the result is a new tensor, or `tensor` itself where it is `in_place`, or `into`, which
  // has the shape and the type of `tensor`. Tensors on the CPU.
  // Errors (thrown): ValueError naming the argument; if the run waits, also the operation's.
  //
  // The queue of a GPU is for tensors of that GPU. Operations come after what the calling thread's
  // current stream has by then, and are done when the GPU is done. All of them, collectives and
  // those between neighbours, run in the order of their calls. The library of the GPUs has no tags,
  // so both ends of an edge call them in the same order; another order is an error at both
  // (comm/transport/nccl/nccl_communicator.h).
  //
  // The reduction over the ranks. Shape: that of `tensor`.
  Handle AllReduce(const Run& run, const at::Tensor& tensor, int op, bool in_place,
                   const Target& into = {});
  Handle Broadcast(const Run& run, const at::Tensor& tensor, int root, bool in_place);
  // The ranks' tensors, one behind the other along the first dimension, in which they may differ.
  // Where they do not fit, all ranks get the same error. `host`: given on the queue of a GPU, a
  // queue of the same ranks, on which they tell each other their shapes; then it blocks until all
  // ranks have called it.
  Handle AllGather(const Run& run, const at::Tensor& tensor, PythonQueue* host = nullptr);
  // See comm/neighbors.h. Shape: that of `tensor`.
  Handle NeighborAllReduce(const Run& run, const at::Tensor& tensor, const Table& table,
                           const Target& into = {});
  // The sources' tensors, in the table's order, along the first dimension, in which they may
  // differ. Where the tensors at the two ends of an edge do not fit, both get an error, after the
  // other edges are served. `host`: as AllGather's; then it blocks until the neighbours have called
  // it too.
  Handle NeighborAllGather(const Run& run, const at::Tensor& tensor, const Table& table,
                           PythonQueue* host = nullptr);
  // The mean over the ranks of `inner`, a queue for the same device, and then NeighborAllReduce of
  // that. Shape: that of `tensor`. Where the mean fails, the neighbours get an error that says so.
  Handle HierarchicalNeighborAllReduce(const Run& run, const at::Tensor& tensor, const Table& table,
                                       PythonQueue& inner, const Target& into = {});
  // Blocks: until all ranks have called it, at most `timeout`.
  void Barrier(absl::Duration timeout);
  // A barrier of ranks that are about to leave, which meets no other one: where a rank is at
  // another operation, `name` is at this end of what differs. After `timeout` all ranks' operations
  // end as those of a peer that has left, with `reason`. Blocks: at most `timeout`.
  void Leave(const std::string& name, const std::string& reason, absl::Duration timeout);

  absl::Duration timeout() const { return timeout_; }
  // Ends everything; every later operation is an error. Idempotent.
  void Close();

 private:
  Call Begin(const char* what, const Run& run, Call::Use use) const;
  Call BeginOnDevice(const char* what, const Run& run, Call::Use use,
                     const at::Tensor& tensor) const;
  Call BeginCollective(const char* what, const Run& run, Call::Use use,
                       const at::Tensor& tensor) const;
  // What the GPU's operations run on. It is no caller's: two queues, as that of all ranks and that
  // of a machine's, may launch in another order on each rank, and on one stream would wait for each
  // other without end.
  std::optional<CudaStream> OwnStream() const;
  // Has what is launched from now on come after what the calling thread's current stream has.
  void FollowCaller() const;
  Handle NeighborAllGatherOnGpu(const Run& run, const at::Tensor& tensor, const Table& table,
                                PythonQueue& host);
  // Blocks: until the neighbours have told theirs.
  void TellShapes(const Run& run, std::shared_ptr<NeighborGather> gather);
  Handle Submit(const Run& run, lane::Job job, std::shared_ptr<Outcome> outcome);
  Handle Submit(const Run& run, Call call, std::shared_ptr<Outcome> outcome) {
    return Submit(run, call.Take(timeout_), std::move(outcome));
  }

  const std::shared_ptr<const Group> group_;  // shared with the handles
  const int rank_;
  const int world_size_;
  const absl::Duration timeout_;
  const at::Device device_;
  std::optional<c10::Stream> stream_;  // of PyTorch's pool; none for the CPU
  std::shared_ptr<lane::Lane> lane_;   // shared: handles wait on it
  std::atomic<uint64_t> gathers_{0};
  std::atomic<uint64_t> hierarchical_{0};
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_PYTHON_QUEUE_H_
