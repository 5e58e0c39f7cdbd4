// Worlds whose ranks each have a linked model: by what a test is linked with their trainers and
// daemons are threads, or run under a simulation.
#ifndef PELTON_BACKEND_LINK_TEST_LINKED_RANKS_H_
#define PELTON_BACKEND_LINK_TEST_LINKED_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/link/test_links.h"
#include "backend/model.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"

namespace pelton {

// One of them. Threads: the trainer's. Owns: nothing; of use in the body.
struct LinkedRank {
  Rank rank;
  LinkedPair& pair;
  // What the pair was made of.
  const ModelOptions& options;
  // The same model in process. Collective, as Model::Create.
  std::function<absl::StatusOr<std::unique_ptr<Model>>()> make_here;
  // Returns when all ranks have called it by this name. Blocks: so long.
  std::function<absl::Status(const std::string& name)> meet;

  ModelRounds& rounds() { return pair.model().rounds(); }
};

// Threads: a value. Owns: copies.
struct LinkedWorld {
  int world_size = 1;
  ModelOptions model;  // whose group is filled in
  std::vector<TensorSpec> tensors;
  // The body makes the job fail, so that ranks cannot meet once more.
  bool job_fails = false;
  // No part of the body waits for a time to come, so that in a simulation without latencies none
  // passes, unless a wake-up is lost.
  bool is_timeless = false;
};

// Runs `body` as every rank of a world; it must succeed. In a simulation once for each seed, of
// which a failing one is named.
void RunLinkedRanks(const LinkedWorld& world,
                    const std::function<absl::Status(LinkedRank& rank)>& body);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TEST_LINKED_RANKS_H_
