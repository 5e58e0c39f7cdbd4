#include "torch_bindings/csrc/weight_model.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "core/base/status.h"

namespace pelton::torch_bindings {

absl::StatusOr<std::shared_ptr<WeightModel>> WeightModel::Create(std::shared_ptr<Backend> backend,
                                                                 PortOptions options,
                                                                 const NamedTensors& parameters) {
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(options.model.algorithm, options.model.algorithm_options));
  if (!options.on_call && algorithm->schedule().trigger == TriggerKind::kWhenReady) {
    return absl::InvalidArgumentError(absl::StrCat("algorithm ", options.model.algorithm,
                                                   " does not communicate weights between steps"));
  }
  ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, SpecsOf(parameters, BucketsAt::kHost));
  std::shared_ptr<WeightModel> model(new WeightModel(std::move(backend)));
  for (const auto& [name, parameter] : parameters) {
    model->slots_.push_back(std::make_unique<WeightSlot>(name, parameter));
  }
  ASSIGN_OR_RETURN(model->port_, ModelPort::Create(*model->backend_, std::move(options),
                                                   std::move(algorithm), std::move(specs), *model));
  return model;
}

std::vector<std::string> WeightModel::Changes() const {
  std::vector<std::string> changes;
  for (const auto& slot : slots_) {
    if (std::string change = slot->Change(); !change.empty()) {
      changes.push_back(absl::StrCat(slot->name(), ": ", change));
    }
  }
  return changes;
}

absl::Status WeightModel::Post(TrainingEvent event) {
  event.is_synchronized = synchronized_;
  event.is_recomputed = torch::autograd::get_current_graph_task_id() != -1;
  return port_->Post(event);
}

// Of their versions, and, because changes of `.data` have none, of some values of some of them.
uint64_t WeightModel::Fingerprint() const {
  constexpr size_t kSampledParameters = 8;
  const size_t stride = std::max<size_t>(1, slots_.size() / kSampledParameters);
  uint64_t print = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    print = absl::HashOf(print, slots_[i]->version());
    if (i % stride == 0) print = absl::HashOf(print, slots_[i]->Sample());
  }
  return print;
}

}  // namespace pelton::torch_bindings
