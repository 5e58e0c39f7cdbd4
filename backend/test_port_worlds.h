// A port of two small tensors on each rank of a world, and steps of training: for tests.
#ifndef PELTON_BACKEND_TEST_PORT_WORLDS_H_
#define PELTON_BACKEND_TEST_PORT_WORLDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "algorithms/algorithm.h"
#include "backend/model_port.h"
#include "backend/port_ranks.h"
#include "backend/test_port.h"
#include "backend/test_tensors.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {

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
