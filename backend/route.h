// By which network interface this machine reaches another one.
#ifndef PELTON_BACKEND_ROUTE_H_
#define PELTON_BACKEND_ROUTE_H_

#include <string>

#include "absl/status/statusor.h"

namespace pelton {

// The name of the interface on the route to "<host>:<port>"; nothing is sent. Blocks: while the
// host's name is looked up. Errors: InvalidArgument: not of that form; NotFound: no such host, no
// route to it.
absl::StatusOr<std::string> InterfaceTowards(const std::string& address);

}  // namespace pelton

#endif  // PELTON_BACKEND_ROUTE_H_
