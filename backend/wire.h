// The wire between hosts that a job has chosen.
#ifndef PELTON_BACKEND_WIRE_H_
#define PELTON_BACKEND_WIRE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/transport/transport.h"

namespace pelton {

// Makes the transport that is registered as `name`; collective over the job. Where
// `options.interface` is "", it is the one towards the coordinator. Blocks: until all have called,
// or the deadline. Errors: NotFound: there is no such transport; those of the transport.
absl::StatusOr<std::unique_ptr<Transport>> ConnectWire(const std::string& name,
                                                       const std::string& coordinator_address,
                                                       TransportOptions options);

}  // namespace pelton

#endif  // PELTON_BACKEND_WIRE_H_
