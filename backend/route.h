// By which network interface this machine reaches another one.
#ifndef PELTON_BACKEND_ROUTE_H_
#define PELTON_BACKEND_ROUTE_H_

#include <ifaddrs.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"

namespace pelton {

// Where somebody listens. Threads: a value. Owns: its text.
struct HostAndPort {
  std::string host;  // an IPv6 address without brackets
  std::string port;
};

// The parts of "<host>:<port>", in which an IPv6 address is in brackets. Errors: InvalidArgument:
// not of that form.
absl::StatusOr<HostAndPort> SplitAddress(const std::string& address);

// The name of the interface on the route to "<host>:<port>", or, where it has several IPv4
// addresses and its first is not that of the route, the route's address; nothing is sent. Blocks:
// while the host's name is looked up. Errors: InvalidArgument: not of that form; NotFound: no such
// host, no route to it.
absl::StatusOr<std::string> InterfaceTowards(const std::string& address);

// The same where a route starts from `source`, on a host with the interfaces in `list`.
absl::StatusOr<std::string> InterfaceWith(const sockaddr& source, const ifaddrs* list);

}  // namespace pelton

#endif  // PELTON_BACKEND_ROUTE_H_
