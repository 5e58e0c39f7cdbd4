// A rank's place in its job, as a launcher says it in the environment.
#ifndef PELTON_BACKEND_ENVIRONMENT_H_
#define PELTON_BACKEND_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"

namespace pelton {

// For a program in C++ that `pelton run`, `bfrun` or a script starts once for each rank: RANK,
// WORLD_SIZE, PELTON_COORDINATOR and PELTON_JOB_TOKEN, of which rank 0 serves the third; and, where
// they are set, PELTON_TIMEOUT, PELTON_JOIN_TIMEOUT, PELTON_HEARTBEAT_TIMEOUT, PELTON_INTERFACE,
// PELTON_HOST_LABEL, PELTON_WIRE, PELTON_TLS_CA, PELTON_TLS_CERT, PELTON_TLS_KEY and
// PELTON_TLS_NAME, with the meanings of docs/variables.md. Where PELTON_COORDINATOR is
// "unix:<path>" the rank's pelton-daemon is there, and no token is needed. Without one a process
// starts one backend with them, because the coordinator ends with that of rank 0. Errors:
// InvalidArgument: one of them is missing or malformed, by name; FailedPrecondition: the token
// would cross a network in clear (PELTON_INSECURE=1 permits it).
absl::StatusOr<BackendOptions> OptionsFromEnvironment();

// The number of seconds that a variable or a flag says, 0 or more; nothing where it says none, or
// one that has no end.
std::optional<absl::Duration> ParseSeconds(const std::string& text);

}  // namespace pelton

#endif  // PELTON_BACKEND_ENVIRONMENT_H_
