// Data-parallel training in C++: one torch::nn::Module, trained by all ranks of a group.
#ifndef PELTON_TORCH_BINDINGS_MODULE_PARALLEL_MODULE_H_
#define PELTON_TORCH_BINDINGS_MODULE_PARALLEL_MODULE_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/model_port.h"
#include "comm/communicator.h"
#include "torch_bindings/csrc/backward_watch.h"
#include "torch_bindings/csrc/tensors.h"
#include "torch_bindings/csrc/wrapped_model.h"

namespace pelton {

// A module's tensors before training: the same on all ranks.

// Gives all ranks the values that `tensors` have on rank 0 of `communicator`; on a GPU by way of
// the host. Collective. Blocks: until `deadline`. Errors: FailedPrecondition: number, names, shapes
// or dtypes differ: says on which ranks from rank 0's, before a byte is changed; those of
// operations.
absl::Status TakeFirstRanksState(Communicator& communicator, const std::string& module,
                                 const torch_bindings::NamedTensors& tensors, absl::Time deadline);

struct ParallelModuleOptions {
  std::string name = "module";   // in reports and errors; the same on all ranks
  std::vector<Rank> ranks = {};  // that train it; none: all of the job
  std::string algorithm = "gradient_allreduce";
  AlgorithmOptions algorithm_options = {};
  uint64_t bucket_size_bytes = limits::kDefaultBucketBytes;
  absl::Duration timeout = absl::ZeroDuration();  // of each operation; zero: the backend's
};

// The loop of a training, in which the ranks meet:
//
//   auto parallel = ParallelModule::Wrap(backend, module, {}).value();
//   for (...) {
//     optimizer.zero_grad();
//     ASSIGN_OR_RETURN(at::Tensor loss, parallel->Forward([&] { return Loss(module(x), y); }));
//     RETURN_IF_ERROR(parallel->Backward(loss));
//     RETURN_IF_ERROR(parallel->Step(optimizer));
//   }
//
// Any algorithm of the registry works but those that belong to an optimizer of Python's. All ranks
// call the same methods in the same order. Parameters must not come, go or change their shape.
// Threads: the trainer's. Owns: the communication; shares module and backend.
class ParallelModule {
 public:
  // Parameters and buffers become those of the group's first rank. Collective over the group.
  // Blocks: until all ranks have called, or the backend's join timeout. Errors: InvalidArgument: no
  // parameter needs a gradient, the algorithm or its options, or it belongs to an optimizer;
  // FailedPrecondition: names what differs between the ranks' modules; those of Model::Create.
  static absl::StatusOr<std::unique_ptr<ParallelModule>> Wrap(
      std::shared_ptr<Backend> backend, std::shared_ptr<torch::nn::Module> module,
      const ParallelModuleOptions& options);
  // Blocks: where the other ranks do not stop an averaging beside the training (async), for 10 s at
  // most; then this rank's end ends it for them, with an error.
  ~ParallelModule();
  ParallelModule(const ParallelModule&) = delete;
  ParallelModule& operator=(const ParallelModule&) = delete;

  // Calls `forward`, which runs the module, and returns what it returns: outputs, or a loss.
  // Blocks: as `forward`; where a round of the algorithm ends here, until the timeout. Errors: what
  // an earlier round failed with; FailedPrecondition: an optimizer stepped without Step. Exceptions
  // of `forward` pass through.
  absl::StatusOr<at::Tensor> Forward(const std::function<at::Tensor()>& forward);
  // loss.backward(), during which gradients are averaged if the algorithm does that. Calling that
  // itself is right, too, and throws a std::exception where this returns an error. Shape: `loss`
  // has one element. Blocks: until the timeout. Errors: those of the round, which name rank, bucket
  // and tensor.
  absl::Status Backward(const at::Tensor& loss);
  // optimizer.step(). Blocks: where a round of weights begins or ends, until the timeout.
  absl::Status Step(torch::optim::Optimizer& optimizer);

  // Off: gradients accumulate on this rank alone, and steps do not count; on again: the next
  // backward pass communicates the sums.
  void SetSynchronized(bool synchronized) { model_->SetSynchronized(synchronized); }
  // Has an averaging beside the training (async) end on all ranks, before an evaluation for
  // instance; Resume has it go on. Nothing for other algorithms. Collective. Blocks: Stop: until
  // the timeout.
  absl::Status Stop();
  absl::Status Resume() { return model_->port().Resume(); }

  ModelPort::Statistics statistics() const { return model_->statistics(); }

 private:
  ParallelModule(std::shared_ptr<torch::nn::Module> module, absl::Duration timeout)
      : module_(std::move(module)), timeout_(timeout) {}

  absl::Status Install(std::shared_ptr<Backend> backend, const ParallelModuleOptions& options);
  void WatchBackwards();
  absl::Status Post(EventKind kind, const torch::optim::Optimizer* optimizer = nullptr);
  // A number that changes when the parameters do; 0 where steps do not count.
  uint64_t Fingerprint() const;
  // Between two forward passes.
  absl::Status CheckSteps();

  const std::shared_ptr<torch::nn::Module> module_;
  const absl::Duration timeout_;
  std::string name_;
  torch_bindings::NamedTensors parameters_;
  std::shared_ptr<torch_bindings::WrappedModel> model_;
  // Says when backward passes begin and end.
  std::shared_ptr<torch_bindings::BackwardWatch> watch_;
  bool counts_steps_ = false;  // rounds are made of them
  bool has_stepped_ = false;   // since the last forward pass
  uint64_t print_ = 0;         // of the parameters, at the last forward pass
};

}  // namespace pelton

#endif  // PELTON_TORCH_BINDINGS_MODULE_PARALLEL_MODULE_H_
