// The communicator that Python's collectives call.
#ifndef PELTON_TORCH_BINDINGS_CSRC_PYTHON_COMMUNICATOR_H_
#define PELTON_TORCH_BINDINGS_CSRC_PYTHON_COMMUNICATOR_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "comm/group.h"
#include "comm/lane/lane.h"
#include "core/base/ids.h"
#include "core/base/sharing.h"
#include "core/base/sync.h"
#include "core/pipeline/operation_kind.h"

namespace pelton::torch_bindings {

// Runs each collective on the calling thread, which borrows the lane: a small allreduce takes about
// a microsecond, a hop to another thread up to sixty. Called without the GIL. Threads: any; calls
// from several threads run one after the other, and the user sees to it that their order is the
// same on all ranks. Owns: its end of the communicators; keeps the backend alive.
class PythonCommunicator {
 public:
  // Opens it among the ranks of `group`, which reports call `name`, with `schedules` as in
  // Backend::Open. Collective. Errors (thrown): those of Backend::Open.
  PythonCommunicator(std::shared_ptr<Backend> backend, Group group, std::string name,
                     std::string schedules = "");

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // Errors (thrown): ValueError: `op` has no meaning for the type.
  static void CheckReducible(at::ScalarType type, int op);

  // All: Shape and meaning as in comm/collectives.h; contiguous tensors, all on the CPU or all on
  // one GPU, for which the ranks open a communicator at its first use. On a GPU the operation comes
  // after what is on the current stream.
  // Blocks: until done, or the backend's operation timeout.
  // Errors (thrown): ValueError naming the argument; else as comm/await.h.
  //
  // Of any kind. What it has no use for on this rank is not looked at.
  void Collective(OperationKind kind, const at::Tensor& send, const at::Tensor& recv,
                  Rank root = Rank(0), int op = 0);
  // Units: elements, of the tensors as flat ones. Negative numbers are an error.
  void AllToAllV(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                 const std::vector<int64_t>& send_displs, const at::Tensor& recv,
                 const std::vector<int64_t>& recv_counts, const std::vector<int64_t>& recv_displs);
  void Send(const at::Tensor& tensor, int dst, int tag);
  void Recv(const at::Tensor& tensor, int src, int tag);

  // Fails what is in flight and all that comes, on every rank; on the others what uses a device for
  // the first time after it fails at the join timeout, because this rank does not open that.
  void Abort();
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
  // Gives the communicator back; every later operation is an error. Idempotent. Blocks: until a
  // call on another thread has ended. Errors (thrown): another thread opens one for too long.
  void Close();

 private:
  struct DeviceOrder {
    bool operator()(const at::Device& a, const at::Device& b) const {
      return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
    }
  };
  // The tensors of a call; those that this rank does not give are undefined.
  using Tensors = std::initializer_list<at::Tensor>;

  // Runs `call` as the only one. It is given the calling thread's current stream, null on the CPU,
  // and a deadline, and returns a status.
  template <typename Function>
  void Run(absl::string_view what, Tensors tensors, Function call);
  template <typename LaunchFunction>
  void LaunchAndAwait(absl::string_view what, Tensors tensors, LaunchFunction launch);
  template <typename LaunchFunction>
  void LaunchOne(absl::string_view what, const at::Tensor& tensor, LaunchFunction launch);
  // Shared: a call keeps its lane while another thread closes it.
  using SharedLane = std::shared_ptr<lane::Lane>;
  absl::StatusOr<SharedLane> LaneOf(const at::Device& device);
  bool TakeOpening() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true, opening_);
  absl::Status OpensForTooLong() const;
  absl::Status WasAborted() const;

  std::shared_ptr<Backend> backend_;  // shared: any of Python's objects may be the last to go
  const Group group_;
  const std::string name_;
  const std::string schedules_;
  const int rank_;
  const int world_size_;
  Turn opening_;  // one communicator at a time is opened
  bool is_closed_ ABSL_GUARDED_BY(opening_) = false;
  // Of the CPU, and of the GPUs that were used; none once closed.
  SharedTable<at::Device, SharedLane, DeviceOrder> lanes_;
  std::atomic<bool> aborted_{false};
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_PYTHON_COMMUNICATOR_H_
