// What tools ask a daemon.
#ifndef PELTON_BACKEND_LINK_DAEMON_QUESTIONS_H_
#define PELTON_BACKEND_LINK_DAEMON_QUESTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/link.pb.h"

namespace pelton {

// Of the daemon that listens at `path`; at a path that ends with ".grpc", of the process whose
// tools' door that is. Blocks: until `deadline`. Errors: NotFound: nobody listens at `path`;
// FailedPrecondition: it is of another version; DeadlineExceeded: it does not answer.
absl::StatusOr<proto::LinkStatus> AskStatus(const std::string& path, absl::Time deadline);

// Has the daemon end in good order; it answers before it does. Blocks and Errors: as AskStatus.
absl::Status AskToStop(const std::string& path, absl::Time deadline);

// Tells the daemon that nobody starts another trainer in the place of the one that came last, so
// that its peers do not wait for one. Blocks and Errors: as AskStatus.
absl::Status TellOfNoHeir(const std::string& path, absl::Time deadline);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_DAEMON_QUESTIONS_H_
