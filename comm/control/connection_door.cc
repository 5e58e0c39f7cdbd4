#include "comm/control/connection_door.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/process_limits.h"

namespace pelton {
namespace {

// How often it is tried again to accept what waits, while this process has no descriptor left.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);
constexpr int kAcceptsPerTurn = 64;

// As gRPC names the other end of a connection; "" for what is no IP address.
std::string PeerName(const sockaddr_storage& from) {
  char host[INET6_ADDRSTRLEN] = "";
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
    return absl::StrCat("ipv4:", host, ":", ntohs(v4.sin_port));
  }
  if (from.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
  inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
  return absl::StrCat("ipv6:%5B", host, "%5D:", ntohs(v6.sin6_port));
}

absl::Status CannotListen(const std::string& at) {
  return absl::UnavailableError(absl::StrCat("cannot listen at ", at, ": ", ErrorText(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionDoor>> ConnectionDoor::Listen(const std::string& host,
                                                                       int port) {
  std::unique_ptr<ConnectionDoor> door(new ConnectionDoor);
  const absl::Status bound = door->Bind(host, port);
  if (!bound.ok()) return bound;
  return door;
}

absl::Status ConnectionDoor::Bind(const std::string& host, int port) {
  const std::string wanted = absl::StrCat(host, ":", port);
  const bool is_v6 = !host.empty() && host.front() == '[';
  const std::string bare = is_v6 ? host.substr(1, host.size() - 2) : host;
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(bare.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    errno = EADDRNOTAVAIL;
    return CannotListen(wanted);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  listener_ = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  // What an earlier server of this port has left in TIME_WAIT is no hindrance.
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  if (listener_ < 0 || bind(listener_, found->ai_addr, found->ai_addrlen) != 0 ||
      listen(listener_, SOMAXCONN) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return CannotListen(wanted);
  }
  // The port is at the same place for both families.
  address_ = absl::StrCat(host, ":", ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port));
  return absl::OkStatus();
}

ConnectionDoor::Stranger::~Stranger() { close(socket); }

ConnectionDoor::~ConnectionDoor() { Close(); }

void ConnectionDoor::Close() {
  thread_.Stop();
  watched_.clear();
  strangers_.RemoveIf([](const StrangerPointer&) { return true; });
  if (listener_ >= 0) close(std::exchange(listener_, -1));
}

void ConnectionDoor::Open(size_t max_strangers, Take take) {
  max_strangers_ = max_strangers;
  take_ = std::move(take);
  thread_.Start([this](std::vector<pollfd>& entries) { return Enter(entries); },
                [this](const std::vector<pollfd>& entries) { LookAt(entries); });
}

void ConnectionDoor::Admit(absl::string_view peer) {
  bool was_stranger = false;
  strangers_.RemoveIf([&](const StrangerPointer& stranger) {
    was_stranger |= stranger->peer == peer;
    return stranger->peer == peer;
  });
  if (was_stranger) thread_.Wake();  // it may be waiting for that descriptor, which it lets go of
}

absl::Time ConnectionDoor::Enter(std::vector<pollfd>& entries) {
  watched_ = strangers_.All();
  entries.push_back({lacks_descriptors_ ? -1 : listener_, POLLIN, 0});
  for (const StrangerPointer& stranger : watched_) entries.push_back({stranger->socket, 0, 0});
  return lacks_descriptors_ ? Clock::Real().Now() + kRetryInterval : absl::InfiniteFuture();
}

void ConnectionDoor::LookAt(const std::vector<pollfd>& entries) {
  lacks_descriptors_ = false;
  for (size_t i = 0; i < watched_.size(); ++i) {
    if (entries[1 + i].revents != 0) strangers_.Remove(watched_[i]);
  }
  watched_.clear();
  AcceptAll();
}

void ConnectionDoor::AcceptAll() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage from = {};
    socklen_t size = sizeof from;
    const int accepted =
        accept4(listener_, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted >= 0) {
      Welcome(accepted, from);
      continue;
    }
    lacks_descriptors_ = IsExhaustion(errno);
    if (errno == ECONNABORTED || errno == EINTR) continue;
    return;
  }
}

void ConnectionDoor::Welcome(int socket, const sockaddr_storage& from) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const int second = fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (second < 0) {
    lacks_descriptors_ = true;
    close(socket);
    return;
  }
  if (strangers_.size() >= max_strangers_) {
    const std::optional<StrangerPointer> oldest = strangers_.TakeFirst();
    // The owner of the socket reads the end of the connection, and closes the socket.
    if (oldest.has_value()) shutdown((*oldest)->socket, SHUT_RDWR);
  }
  strangers_.Add(std::make_shared<Stranger>(second, PeerName(from)));
  take_(socket);
}

}  // namespace pelton
