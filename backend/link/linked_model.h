// A model whose rounds a daemon runs, on the trainer's side.
#ifndef PELTON_BACKEND_LINK_LINKED_MODEL_H_
#define PELTON_BACKEND_LINK_LINKED_MODEL_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/link/link_socket.h"
#include "backend/model.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"
#include "core/plan/plan.h"

namespace pelton {

// What a linked model has to do with the trainer's job. Threads: a value; the functions are called
// by the thread that waits. Owns: copies.
struct LinkedJob {
  Rank rank;  // of this process in the world
  // Called with the error of the first round that fails because its communication has ended; may be
  // empty.
  std::function<void(const absl::Status&)> on_failure = nullptr;
  // Why the job has failed, as far as the trainer was told of the other ranks; OK while it has not.
  // It ends what waits for the daemon. May be empty.
  std::function<absl::Status()> failure = nullptr;
  // While it stands, so do the deadlines of waits for a round. May be null; outlives the model.
  const Standstill* standstill = nullptr;
};

// Asks the daemon at the other end of `socket`, which serves nothing else, for the model that
// `options` describe: see ModelServer::Serve. The daemon makes its algorithm by name, so it must be
// a registered one; `algorithm` is the same, made here, and says which tensors and when.
// `options.viewer` sees nothing.
// Collective over the group. Blocks: until `deadline`. Errors: Unimplemented:
// tensors of a GPU; FailedPrecondition: trainer and daemon differ; those of Model::Create;
// Unavailable: the daemon is gone.
absl::StatusOr<std::unique_ptr<Model>> AttachModel(std::unique_ptr<LinkSocket> socket,
                                                   LinkedJob job, const ModelOptions& options,
                                                   std::unique_ptr<Algorithm> algorithm,
                                                   std::vector<TensorSpec> tensors,
                                                   absl::Time deadline);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINKED_MODEL_H_
