// A rank's end of the control plane over gRPC.
#ifndef PELTON_COMM_CONTROL_GRPC_CONTROL_H_
#define PELTON_COMM_CONTROL_GRPC_CONTROL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/control/tls_options.h"
#include "core/base/limits.h"

namespace pelton {

struct GrpcControlOptions {
  std::string address = {};  // the coordinator's, "<host>:<port>"
  std::string token = {};    // the job's secret, as the coordinator holds it
  absl::Duration heartbeat_interval = limits::kHeartbeatInterval;
  // How long the coordinator may be silent before it counts as lost.
  absl::Duration heartbeat_timeout = limits::kHeartbeatTimeout;
  TlsOptions tls = {};  // this rank's certificate, where the coordinator wants some
};

// Connects at Join, trying again until its deadline: the coordinator may start later. An order
// kCoordinatorLost comes when the connection ends before Leave.
// Errors: InvalidArgument: names the option; those of MakeChannelCredentials.
absl::StatusOr<std::unique_ptr<Control>> MakeGrpcControl(const GrpcControlOptions& options);

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_GRPC_CONTROL_H_
