// The network of TCP connections between the ranks of a job.
#ifndef PELTON_COMM_TRANSPORT_TCP_TCP_NETWORK_H_
#define PELTON_COMM_TRANSPORT_TCP_TCP_NETWORK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/transport/network/worker.h"
#include "core/base/ids.h"

namespace pelton::tcp {

// Errors: NotFound: no such interface; ResourceExhausted.
absl::StatusOr<std::unique_ptr<network::Network>> MakeTcpNetwork(const std::string& interface,
                                                                 const std::string& job_token,
                                                                 Rank rank, WorldSize world_size);

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_TCP_NETWORK_H_
