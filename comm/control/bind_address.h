// Addresses of this host's network interfaces, at which a rank or a server listens.
#ifndef PELTON_COMM_CONTROL_BIND_ADDRESS_H_
#define PELTON_COMM_CONTROL_BIND_ADDRESS_H_

#include <netdb.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace pelton {

// The numeric address of `interface`: itself if it is one, or the first address of the network
// interface of that name (IPv4 before IPv6). In brackets if IPv6, so that ":port" can follow.
// Errors: InvalidArgument: a wildcard; NotFound: no such interface.
absl::StatusOr<std::string> ResolveBindAddress(const std::string& interface);

// Of the answers of getaddrinfo one that other hosts can reach, before those of loopback (Debian
// gives 127.0.1.1 to a machine's own name), and IPv4 before IPv6. Empty if there is none.
std::string BestAddressOf(const addrinfo* list);

// The same as ResolveBindAddress, or else the address of the host of that name: BestAddressOf those
// that it stands for. Blocks: while a name is looked up. Errors: also NotFound: no such host.
absl::StatusOr<std::string> ResolveServingAddress(const std::string& host);

// The name of the network interface that `interface` is, or is a numeric address of. Errors:
// NotFound: there is none.
absl::StatusOr<std::string> ResolveInterfaceName(const std::string& interface);

// The IPv4 address among these, in network order. Errors: also Unimplemented: it has none.
absl::StatusOr<uint32_t> ResolveIpv4(const std::string& interface);

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_BIND_ADDRESS_H_
