// A port of two small tensors on each rank of a world, and steps of training: for tests.
#ifndef PELTON_BACKEND_TEST_PORT_WORLDS_H_
#define PELTON_BACKEND_TEST_PORT_WORLDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/model_port.h"
#include "backend/test_port_ranks.h"
#include "backend/test_tensors.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/round/tensor_port.h"
#include "gtest/gtest.h"

namespace pelton {

// The making of a model's port over plain tensors, for its tests.

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

// Of all ranks, over float32 tensors with `counts` elements. Errors: those of MakeAlgorithm and of
// ModelPort::Create.
inline absl::StatusOr<std::unique_ptr<ModelPort>> MakePort(ModelSource source, WorldSize world_size,
                                                           const PortSettings& settings,
                                                           const std::vector<uint64_t>& counts,
                                                           TensorPort& tensors) {
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
  for (uint64_t count : counts) {
    specs.push_back({.name = absl::StrCat("t", specs.size()), .count = count});
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(settings.algorithm, settings.options));
  return ModelPort::Create(std::move(source), std::move(options), std::move(algorithm),
                           std::move(specs), tensors);
}

inline absl::StatusOr<std::unique_ptr<ModelPort>> MakePort(ModelSource source, WorldSize world_size,
                                                           const PortSettings& settings,
                                                           PlainTensors& tensors) {
  std::vector<uint64_t> counts;
  for (const std::vector<float>& tensor : tensors.tensors()) counts.push_back(tensor.size());
  return MakePort(std::move(source), world_size, settings, counts, tensors);
}

// As above, of all ranks of `backend`.
inline absl::StatusOr<std::unique_ptr<ModelPort>> MakePort(Backend& backend,
                                                           const PortSettings& settings,
                                                           PlainTensors& tensors) {
  return MakePort(ModelSource::Of(backend), backend.world_size(), settings, tensors);
}

inline absl::StatusOr<std::unique_ptr<ModelPort>> MakePort(const PortRank& rank,
                                                           const PortSettings& settings,
                                                           PlainTensors& tensors) {
  return MakePort(rank.source, rank.world_size, settings, tensors);
}

using PortBody = std::function<absl::Status(ModelPort& port, Tensors& tensors, int32_t rank)>;

// Runs `body` on every rank of a world; what the tensors are after it, by rank. Where worlds are
// several (RunPortRanks), all of them must come to the same, unless runs do not repeat.
inline std::vector<Tensors> RunWorld(int world_size, const PortSettings& settings,
                                     const PortBody& body) {
  std::vector<Tensors> results(static_cast<size_t>(world_size));
  std::vector<std::vector<Tensors>> worlds;
  const auto run = [&](PortRank& rank) -> absl::Status {
    PlainTensors tensors(Initial());
    ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port, MakePort(rank, settings, tensors));
    const absl::Status status = body(*port, tensors.tensors(), rank.rank.value());
    results[static_cast<size_t>(rank.rank.value())] = tensors.tensors();
    // Nobody leaves while another one is at its last round.
    const absl::Status met = rank.meet("end");
    return status.ok() ? met : status;
  };
  RunPortRanks(world_size, run, [&] { worlds.push_back(results); });
  const bool repeats = (*MakeAlgorithm(settings.algorithm, settings.options))->Repeats();
  for (const std::vector<Tensors>& world : worlds) EXPECT_TRUE(!repeats || world == results);
  return results;
}

// Steps of training, each with all that a trainer posts.
inline PortBody TrainFor(uint64_t steps) {
  return [steps](ModelPort& port, Tensors& tensors, int32_t rank) {
    for (uint64_t step = 1; step <= steps; ++step) {
      for (EventKind kind : {EventKind::kForwardBegins, EventKind::kBackwardBegins,
                             EventKind::kBackwardEnds, EventKind::kBeforeStep}) {
        RETURN_IF_ERROR(port.Post(Event(kind)));
      }
      Train(tensors, rank, step);
      RETURN_IF_ERROR(port.Post(Event(EventKind::kAfterStep)));
    }
    return absl::OkStatus();
  };
}

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_PORT_WORLDS_H_
