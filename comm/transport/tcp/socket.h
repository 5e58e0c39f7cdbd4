// Sockets as the TCP transport needs them: they never block, and notice a peer that is gone.
#ifndef PELTON_COMM_TRANSPORT_TCP_SOCKET_H_
#define PELTON_COMM_TRANSPORT_TCP_SOCKET_H_

#include <netinet/in.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/transport/descriptor.h"

namespace pelton::tcp {

// "tcp: <what>: <the system's words for errno>": ResourceExhausted where this process or host has
// nothing left to give, else Unavailable.
absl::Status SystemError(absl::string_view what);

// "<IPv4>:<port>" of a socket's own end, and back. No value: it is no such text.
std::string AddressOf(int socket);
std::optional<sockaddr_in> ParseAddress(const std::string& text);

// Listens on a free port of `host`, an IPv4 address in network order.
absl::StatusOr<Descriptor> Listen(in_addr_t host, int backlog);
// The next connection that waits, from `*host`; closed if there is none. Errors: ResourceExhausted:
// there may be one, and no descriptor for it.
absl::StatusOr<Descriptor> Accept(int listener, in_addr_t* host);
// Begins to connect from `host` to `to`. Blocks: never.
absl::StatusOr<Descriptor> Connect(in_addr_t host, const sockaddr_in& to);
// Whether the other end has answered nothing for some seconds, although the kernel keeps asking:
// its host has vanished, or the link is cut.
bool IsSilent(int socket);
// Whether the other end's kernel has all that was written, or will never have it.
bool IsDelivered(int socket);
// Why a connection broke.
absl::Status ErrorOf(int socket);

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_SOCKET_H_
