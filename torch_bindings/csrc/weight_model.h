// A model of which Pelton communicates tensors between steps, weights for instance: copies of them
// in buckets, whose rounds go on beside training, and what becomes of the results.
#ifndef PELTON_TORCH_BINDINGS_CSRC_WEIGHT_MODEL_H_
#define PELTON_TORCH_BINDINGS_CSRC_WEIGHT_MODEL_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/backend.h"
#include "backend/model_port.h"
#include "core/round/tensor_port.h"
#include "core/round/training_event.h"
#include "torch_bindings/csrc/named_tensors.h"
#include "torch_bindings/csrc/weight_slot.h"

namespace pelton::torch_bindings {

// Threads: as ModelPort; without the GIL. Owns: the port, and references to the tensors; keeps the
// backend alive.
class WeightModel final : private TensorPort {
 public:
  // As ModelPort::Create. Errors: also InvalidArgument: no parameter, or mixed devices.
  static absl::StatusOr<std::shared_ptr<WeightModel>> Create(std::shared_ptr<Backend> backend,
                                                             PortOptions options,
                                                             const NamedTensors& parameters);
  WeightModel(const WeightModel&) = delete;
  WeightModel& operator=(const WeightModel&) = delete;

  ModelPort& port() { return *port_; }
  const ModelPort& port() const { return *port_; }
  // "name: what changed", for each parameter that is no longer what was registered.
  std::vector<std::string> Changes() const;
  // Off: events from now on are of no_sync.
  void SetSynchronized(bool synchronized) { synchronized_ = synchronized; }
  // ModelPort::Post, with what the bindings know themselves.
  absl::Status Post(TrainingEvent event);

 private:
  explicit WeightModel(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}

  void Place(SlotId slot, std::byte* memory) override { at(slot).Bind(memory); }
  absl::StatusOr<Brought> Bring(SlotId slot, bool) override { return Brought{at(slot).CopyIn()}; }
  void Merge(SlotId slot, const CommitRule& rule, bool) override { at(slot).Merge(rule); }
  uint64_t Fingerprint() const override;
  WeightSlot& at(SlotId slot) { return *slots_[static_cast<size_t>(slot.value())]; }

  // Shared: Python's objects go in any order. Each goes after the one below it.
  std::shared_ptr<Backend> backend_;
  std::vector<std::unique_ptr<WeightSlot>> slots_;
  std::unique_ptr<ModelPort> port_;
  bool synchronized_ = true;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_WEIGHT_MODEL_H_
