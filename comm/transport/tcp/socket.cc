#include "comm/transport/tcp/socket.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/fork.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton::tcp {
namespace {

struct Option {
  int level;
  int name;
  int value;
};

// A host that vanished is noticed within seconds, on a connection that is idle; see IsSilent for
// the others. What the kernel holds unsent is bounded, so that a short message need not wait behind
// megabytes of a long one.
constexpr Option kOptions[] = {
    {IPPROTO_TCP, TCP_NODELAY, 1},  {SOL_SOCKET, SO_KEEPALIVE, 1},
    {IPPROTO_TCP, TCP_KEEPIDLE, 3}, {IPPROTO_TCP, TCP_KEEPINTVL, 1},
    {IPPROTO_TCP, TCP_KEEPCNT, 3},  {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 256 << 10},
};

// As long as keepalive takes.
constexpr uint32_t kSilenceMs = 6000;
constexpr uint8_t kUnansweredTries = 3;

void SetOptions(int socket) {
  for (const Option& option : kOptions) {
    setsockopt(socket, option.level, option.name, &option.value, sizeof option.value);
  }
}

absl::StatusOr<Descriptor> MakeSocket(in_addr_t host) {
  Descriptor made(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return SystemError("making a socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = host;
  // The port is chosen with the peer's address in view: there are more connections than ports.
  const int later = 1;
  setsockopt(made.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &later, sizeof later);
  if (bind(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return SystemError("binding to the interface");
  }
  return made;
}

}  // namespace

absl::Status SystemError(absl::string_view what) {
  return Annotate(pelton::SystemError(what), "tcp");
}

std::string AddressOf(int socket) {
  sockaddr_in address = {};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return absl::StrCat(text, ":", ntohs(address.sin_port));
}

std::optional<sockaddr_in> ParseAddress(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  uint32_t port = 0;
  if (parts.size() != 2 || inet_pton(AF_INET, parts[0].c_str(), &address.sin_addr) != 1 ||
      !absl::SimpleAtoi(parts[1], &port) || port == 0 || port > UINT16_MAX) {
    return std::nullopt;
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

absl::StatusOr<Descriptor> Listen(in_addr_t host, int backlog) {
  absl::StatusOr<Descriptor> made = MakeSocket(host);
  if (made.ok() && listen(made->get(), backlog) != 0) return SystemError("listening");
  if (made.ok()) CloseInChildren(made->get());
  return made;
}

absl::StatusOr<Descriptor> Accept(int listener, in_addr_t* host) {
  sockaddr_in from = {};
  socklen_t size = sizeof from;
  Descriptor accepted(
      accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.is_open() && IsExhaustion(errno)) return SystemError("accepting a connection");
  if (accepted.is_open()) {
    SetOptions(accepted.get());
    CloseInChildren(accepted.get());
  }
  *host = from.sin_addr.s_addr;
  return accepted;
}

// TCP_USER_TIMEOUT would also end a connection whose peer is alive and only does not read.
bool IsSilent(int socket) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // Both start anew with every answer, and a peer that does not read answers.
  const bool is_unanswered =
      info.tcpi_retransmits >= kUnansweredTries || info.tcpi_probes >= kUnansweredTries;
  return is_unanswered && info.tcpi_last_ack_recv >= kSilenceMs;
}

absl::StatusOr<Descriptor> Connect(in_addr_t host, const sockaddr_in& to) {
  absl::StatusOr<Descriptor> made = MakeSocket(host);
  if (!made.ok()) return made;
  SetOptions(made->get());
  CloseInChildren(made->get());
  if (connect(made->get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 &&
      errno != EINPROGRESS) {
    return SystemError("connecting");
  }
  return made;
}

bool IsDelivered(int socket) {
  int unacknowledged = 0;
  if (ioctl(socket, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0) return true;
  tcp_info info = {};
  socklen_t size = sizeof info;
  const bool is_known = getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
  return is_known && info.tcpi_state == TCP_CLOSE;
}

absl::Status ErrorOf(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error != 0 ? SystemError("the connection broke")
                    : absl::UnavailableError("tcp: the peer closed the connection");
}

}  // namespace pelton::tcp
