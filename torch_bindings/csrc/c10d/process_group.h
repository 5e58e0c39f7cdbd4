// Pelton as a backend of torch.distributed.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_PROCESS_GROUP_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_PROCESS_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/lane/lane.h"
#include "core/base/moving_deadline.h"
#include "torch_bindings/csrc/c10d/call.h"
#include "torch_bindings/csrc/c10d/monitored_barrier.h"
#include "torch_bindings/csrc/c10d/work.h"

namespace pelton::torch_bindings {

// What PyTorch's own code reads of a process group that is registered as gloo's.
// Source: ProcessGroupGloo::Options, torch/csrc/distributed/c10d/ProcessGroupGloo.hpp.
// Threads: any may read. Owns: nothing.
struct GlooAlikeOptions : ::c10d::Backend::Options {
  using Options::Options;

  std::vector<std::shared_ptr<void>> devices;  // none
  int threads = 2;                             // what gloo's have unless told otherwise
};

// The logger of PyTorch's DistributedDataParallel takes whatever is registered as gloo's for a
// ProcessGroupGloo and reads its options_->threads, without any question or virtual call. So a
// process group in gloo's seat begins as that class does. Members are where they are in the minor
// version of torch that Pelton was built for, and no other is accepted (pelton/_built_for.py).
// Source: ProcessGroupGloo, torch/csrc/distributed/c10d/ProcessGroupGloo.hpp.
// Threads: any. Owns: the options.
class GlooAlike : public ::c10d::Backend {
 public:
  GlooAlike(int rank, int size, c10::intrusive_ptr<GlooAlikeOptions> options)
      : Backend(rank, size), options_(std::move(options)) {}

  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

 protected:
  const std::shared_ptr<void> store_;  // none
  const c10::intrusive_ptr<GlooAlikeOptions> options_;
};

}  // namespace pelton::torch_bindings

namespace pelton {
class Backend;
}

namespace pelton::torch_bindings {

// How a group is called: by its users, and the backend whose part it plays ("pelton", or "gloo" in
// that one's seat). Threads: a value. Owns: nothing.
struct GroupNames {
  std::string group;
  std::string backend;
};

// One group of torch.distributed on CPU tensors, over a communicator of its own. What a method does
// with its tensors is PyTorch's contract (torch/csrc/distributed/c10d/Backend.hpp). Asynchronous
// calls return at once; one that its caller says it waits for runs on the caller's thread.
// Threads: any; calls from several threads run in the order in which they come. Owns: its end of
// the communicator; keeps the backend alive.
//
// Errors (thrown): InvalidArgument: names the operation, the argument, its value; Unsupported: what
// Pelton does not offer; those of the operation from the call or its Work.
class ProcessGroup final : public GlooAlike {
 public:
  using Work = c10::intrusive_ptr<::c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Milliseconds = std::chrono::milliseconds;
  using OnClosed = std::function<void()>;

  // Collective over `group`, whose ranks are those of `backend`. `on_closed` is called once, by the
  // first shutdown(). Blocks: until all have called, or the backend's join timeout.
  static c10::intrusive_ptr<::c10d::Backend> Create(std::shared_ptr<pelton::Backend> backend,
                                                    const Group& group, const GroupNames& names,
                                                    Milliseconds timeout, OnClosed on_closed);
  // `standstill` lives as long as the communicator.
  ProcessGroup(std::shared_ptr<Communicator> communicator, const Standstill& standstill,
               GroupNames names, Milliseconds timeout, OnClosed on_closed);
  ~ProcessGroup() override;

  const std::string getBackendName() const override { return names_.backend; }
  void setTimeout(Milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}  // all ranks count from zero
  uint64_t getSequenceNumberForGroup() override { return lane_->sequence(); }
  void abort() override;
  void shutdown() override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  // In memory that the ranks of this host reach directly. Shape: [size].
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  Work broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors,
                           const ::c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const ::c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const ::c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                           const ::c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const ::c10d::AllgatherOptions& options) override;
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const ::c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs,
               const ::c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const ::c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const ::c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const ::c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const ::c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int destination, int tag) override;
  Work recv(Tensors& tensors, int source, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const ::c10d::BarrierOptions& options) override;
  // As gloo's: every rank reports to rank 0, which answers it. A rank that does not come is an
  // error of rank 0's, which names the first such rank, or all; the group can be used after it.
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  struct Submission {
    ::c10d::OpType type;
    Milliseconds timeout = ::c10d::kUnsetTimeout;  // the group's
    bool is_async = true;
  };
  // `inputs` are what a profiler shows of the call.
  Work Submit(Call call, const Submission& submission, const Tensors& inputs,
              QueuedWork::Results results);

  Call Begin(const char* operation, Call::Use use) const;
  // One tensor per rank, all of the type of `own`; this rank's has as many elements as `own`.
  void CheckList(const Call& call, const std::string& argument, const Tensors& tensors,
                 const at::Tensor& own) const;
  Work AllReduceSparse(Tensors& tensors, const ::c10d::AllreduceOptions& options);
  void AddAllGatherBase(Call& call, const at::Tensor& output, const at::Tensor& input) const;
  void AddReduceScatterBase(Call& call, const at::Tensor& output, const at::Tensor& input,
                            ReduceOp op) const;
  void AddAllGather(Call& call, const Tensors& outputs, const at::Tensor& input) const;
  void AddReduceScatter(Call& call, const at::Tensor& output, const Tensors& inputs,
                        ReduceOp op) const;
  // Sends `inputs[r]` to rank r and receives `outputs[r]` from it. Shape: [world_size] each.
  void AddExchange(Call& call, const std::vector<Tensor>& outputs,
                   const std::vector<Tensor>& inputs) const;

  const GroupNames names_;
  const Standstill& standstill_;
  const std::shared_ptr<lane::Lane> lane_;  // shared: see Lane::Create
  OnClosed on_closed_;
  MonitoredBarrier monitored_barrier_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_PROCESS_GROUP_H_
