// The communicator that Python's collectives call.
#ifndef PELTON_TORCH_BINDINGS_CSRC_PYTHON_COMMUNICATOR_H_
#define PELTON_TORCH_BINDINGS_CSRC_PYTHON_COMMUNICATOR_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "backend/backend.h"
#include "comm/communicator.h"
#include "core/base/sync.h"

namespace pelton::torch_bindings {

// Runs each collective on the calling thread: a small allreduce takes about a microsecond, a hop to
// another thread up to sixty. Called without the GIL. Threads: any; calls from several threads run
// one after the other, and the user sees to it that their order is the same on all ranks. Owns: its
// end of the communicator; keeps the backend alive.
class PythonCommunicator {
 public:
  PythonCommunicator(std::shared_ptr<Backend> backend, std::unique_ptr<Communicator> communicator);
  ~PythonCommunicator();

  int rank() const { return communicator_->rank().value(); }
  int world_size() const { return communicator_->world_size().value(); }

  // All: Shape and meaning as in comm/collectives.h; contiguous CPU tensors.
  // Blocks: until done, or the backend's operation timeout.
  // Errors (thrown): ValueError naming the argument; else as comm/await.h.
  void AllReduce(const at::Tensor& send, const at::Tensor& recv, int op);
  void Reduce(const at::Tensor& send, const at::Tensor& recv, int dst, int op);
  void ReduceScatter(const at::Tensor& send, const at::Tensor& recv, int op);
  void AllGather(const at::Tensor& send, const at::Tensor& recv);
  void Broadcast(const at::Tensor& tensor, int src);
  void Send(const at::Tensor& tensor, int dst, int tag);
  void Recv(const at::Tensor& tensor, int src, int tag);
  void Barrier();

  // Fails what is in flight and all that comes, on every rank.
  void Abort();
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }

 private:
  template <typename LaunchFunction>
  void Run(const char* what, LaunchFunction launch);

  std::shared_ptr<Backend> backend_;  // shared: any of Python's objects may be the last to go
  std::unique_ptr<Communicator> communicator_;
  std::atomic<bool> aborted_{false};
  Mutex mutex_;  // one operation at a time drives the communicator
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_PYTHON_COMMUNICATOR_H_
