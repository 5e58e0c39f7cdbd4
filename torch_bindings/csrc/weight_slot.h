// One parameter whose values are communicated.
#ifndef PELTON_TORCH_BINDINGS_CSRC_WEIGHT_SLOT_H_
#define PELTON_TORCH_BINDINGS_CSRC_WEIGHT_SLOT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "core/round/schedule.h"

namespace pelton::torch_bindings {

// Threads: the trainer's. Owns: a reference to the parameter; its memory in the bucket is the
// model's, which outlives it.
class WeightSlot {
 public:
  WeightSlot(std::string name, at::Tensor parameter);

  // "" while the parameter is what it was when it was registered, else what changed.
  std::string Change() const;

  // Says where the slot's memory in the bucket is, on the host; a parameter of a GPU is copied
  // there and back, and the host waits for the copy.
  void Bind(void* memory);
  // Returns that place.
  void* CopyIn();
  // Merges what the bucket holds into the parameter. Graphs that were made before and still need
  // its old values notice, as after an optimizer's step.
  void Merge(const CommitRule& rule);

  // Of the parameter: both change when something writes to it, the version unless that goes by
  // `.data`, and the sum of its first values then.
  uint32_t version() const { return parameter_._version(); }
  double Sample() const;
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
  const at::Tensor parameter_;
  const at::ScalarType dtype_;
  const at::Device device_;
  const std::vector<int64_t> sizes_;
  at::Tensor view_;  // of the bucket; dense, in the parameter's order where that is dense too
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_WEIGHT_SLOT_H_
