// What PyTorch's own code reads of a process group that is registered as gloo's.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_GLOO_ALIKE_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_GLOO_ALIKE_H_

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

namespace pelton::torch_bindings {

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

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_GLOO_ALIKE_H_
