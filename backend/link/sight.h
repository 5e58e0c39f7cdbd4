// What a process that has joined a job says of itself to people who look from outside.
#ifndef PELTON_BACKEND_LINK_SIGHT_H_
#define PELTON_BACKEND_LINK_SIGHT_H_

#include <string>

#include "absl/time/time.h"
#include "backend/backend.h"
#include "proto/link.pb.h"

namespace pelton {

// The job, its ranks and hosts, and the models and actors of this process; nothing of a daemon's
// trainer.
// Blocks: until `deadline`, while a model does not answer, which its sight then says.
proto::LinkStatus SightOf(const Backend& backend, absl::Time deadline);

// For people: a line with job, ranks, pids, round, what is open and under way, and why the job has
// failed if it has; and one for each model and each actor.
std::string TextOf(const proto::LinkStatus& status);
std::string TextOf(const proto::ModelSight& model);
std::string TextOf(const proto::ActorSight& actor);

// The status as one line of JSON, its fields by their names in proto/link.proto.
std::string JsonOf(const proto::LinkStatus& status);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_SIGHT_H_
