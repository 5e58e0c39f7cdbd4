// The coordinator: the process that the ranks of a job meet at, over gRPC.
#ifndef PELTON_COMM_CONTROL_COORDINATOR_SERVER_H_
#define PELTON_COMM_CONTROL_COORDINATOR_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/tls_options.h"
#include "core/base/limits.h"

namespace pelton {

struct CoordinatorOptions {
  // A numeric address, or the name of an interface or a host, whose first address is taken.
  // Loopback unless told; a wildcard (0.0.0.0, ::) is refused.
  std::string interface = "127.0.0.1";
  int port = 0;            // 0: a free one
  std::string token = {};  // the job's secret; at least 16 bytes
  absl::Duration heartbeat_timeout = limits::kHeartbeatTimeout;
  TlsOptions tls = {};  // ranks must show a certificate of its authority, where one is named
};

// Serves Coordinator (proto/control.proto) with coordinator_state.h's state machine. No thread
// waits for a call: what blocks on the client's side is a parked reply here. Threads: any. Owns:
// the port, its connections, gRPC's threads and that of its actor.
class CoordinatorServer {
 public:
  // Serves from now on. Errors: InvalidArgument: names the option; NotFound: the interface;
  // Unavailable: the port is taken, or the address is another host's; those of
  // MakeServerCredentials.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(
      const CoordinatorOptions& options);
  // Stops: ranks that have not left are told that the coordinator is lost. Blocks: at most
  // kStopTimeout.
  virtual ~CoordinatorServer() = default;

  // "<address>:<port>" as GrpcControlOptions takes it.
  virtual const std::string& address() const = 0;

  // Returns when no rank is in any job, so that stopping hurts nobody; the process that hosts the
  // coordinator calls it after its own Leave. Errors: DeadlineExceeded: names the ranks that are
  // still in a job.
  virtual absl::Status AwaitEmpty(absl::Time deadline) = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_COORDINATOR_SERVER_H_
