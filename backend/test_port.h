// The making of a model's port over plain tensors, for its tests.
#ifndef PELTON_BACKEND_TEST_PORT_H_
#define PELTON_BACKEND_TEST_PORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/model_port.h"
#include "backend/test_tensors.h"
#include "core/base/ids.h"
#include "core/base/status.h"

namespace pelton {

// Threads: a value. Owns: its fields.
struct PortSettings {
  std::string algorithm;
  AlgorithmOptions options = {};
  bool on_call = false;
  uint64_t steps = 0;
  ModelState state = {};
  bool keeps_order = false;
  uint64_t bucket_bytes = 300;  // each tensor is a bucket of its own
  bool commits_state = true;
};

// Of all ranks. Errors: those of MakeAlgorithm and of ModelPort::Create.
inline absl::StatusOr<std::unique_ptr<ModelPort>> MakePort(ModelSource source, WorldSize world_size,
                                                           const PortSettings& settings,
                                                           PlainTensors& tensors) {
  PortOptions options;
  options.model.name = "net";
  options.model.group = Group::World(world_size);
  options.model.algorithm = settings.algorithm;
  options.model.algorithm_options = settings.options;
  options.model.timeout = absl::Seconds(30);
  options.model.bucket_size_bytes = settings.bucket_bytes;
  options.model.commits_state = settings.commits_state;
  options.on_call = settings.on_call;
  options.keeps_order = settings.keeps_order;
  options.steps = settings.steps;
  options.state = settings.state;
  std::vector<TensorSpec> specs;
  for (const std::vector<float>& tensor : tensors.tensors()) {
    specs.push_back({.name = absl::StrCat("t", specs.size()), .count = tensor.size()});
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(settings.algorithm, settings.options));
  return ModelPort::Create(std::move(source), std::move(options), std::move(algorithm),
                           std::move(specs), tensors);
}

// As above, of all ranks of `backend`.
inline absl::StatusOr<std::unique_ptr<ModelPort>> MakePort(Backend& backend,
                                                           const PortSettings& settings,
                                                           PlainTensors& tensors) {
  return MakePort(ModelSource::Of(backend), backend.world_size(), settings, tensors);
}

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_PORT_H_
