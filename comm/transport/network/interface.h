// The address of a network interface.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_INTERFACE_H_
#define PELTON_COMM_TRANSPORT_NETWORK_INTERFACE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace pelton::network {

// The interface's IPv4 address, in network order. Errors: NotFound: no such interface;
// Unimplemented: it has none.
absl::StatusOr<uint32_t> HostOf(const std::string& interface);

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_INTERFACE_H_
