#include "comm/control/connection_door.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/descriptor_limit.h"

namespace pelton {
namespace {

// How often it is tried again to accept what waits, while this process has no descriptor left.
constexpr int kRetryMs = 100;
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
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  listener_ = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  // What an earlier server of this port has left in TIME_WAIT is no hindrance.
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  if (wake_ < 0 || listener_ < 0 || bind(listener_, found->ai_addr, found->ai_addrlen) != 0 ||
      listen(listener_, SOMAXCONN) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return CannotListen(wanted);
  }
  // The port is at the same place for both families.
  address_ = absl::StrCat(host, ":", ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port));
  return absl::OkStatus();
}

ConnectionDoor::~ConnectionDoor() {
  Close();
  if (wake_ >= 0) close(wake_);
}

void ConnectionDoor::Close() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  if (thread_.joinable()) {
    Poke();
    thread_.join();
  }
  MutexLock lock(&mutex_);
  while (!strangers_.empty()) Forget(strangers_.begin());
  if (listener_ >= 0) close(std::exchange(listener_, -1));
}

void ConnectionDoor::Open(size_t max_strangers, Take take) {
  max_strangers_ = max_strangers;
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionDoor::Admit(absl::string_view peer) {
  {
    MutexLock lock(&mutex_);
    const auto found =
        std::find_if(strangers_.begin(), strangers_.end(),
                     [peer](const Stranger& stranger) { return stranger.peer == peer; });
    if (found == strangers_.end()) return;
    found->is_known = true;
  }
  Poke();  // the thread may be waiting for that descriptor
}

void ConnectionDoor::Poke() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void ConnectionDoor::Forget(std::deque<Stranger>::iterator stranger) {
  close(stranger->socket);
  strangers_.erase(stranger);
}

void ConnectionDoor::Run() {
  while (true) {
    AwaitNews();
    {
      MutexLock lock(&mutex_);
      if (is_stopping_) return;
    }
    AcceptAll();
  }
}

void ConnectionDoor::AwaitNews() {
  std::vector<pollfd> files = {
      {wake_, POLLIN, 0},
      {lacks_descriptors_ ? -1 : listener_, POLLIN, 0},
  };
  {
    MutexLock lock(&mutex_);
    for (const Stranger& stranger : strangers_) files.push_back({stranger.socket, 0, 0});
  }
  poll(files.data(), files.size(), lacks_descriptors_ ? kRetryMs : -1);
  lacks_descriptors_ = false;
  uint64_t pokes = 0;
  [[maybe_unused]] const ssize_t taken = read(wake_, &pokes, sizeof pokes);
  MutexLock lock(&mutex_);
  // Only this thread adds and removes: the order is that of `files`.
  for (size_t i = files.size(); i-- > 2;) {
    const auto stranger = strangers_.begin() + static_cast<ptrdiff_t>(i - 2);
    if (stranger->is_known || files[i].revents != 0) Forget(stranger);
  }
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
  {
    MutexLock lock(&mutex_);
    if (strangers_.size() >= max_strangers_) {
      shutdown(strangers_.front().socket, SHUT_RDWR);  // its owner hears of that, and closes it
      Forget(strangers_.begin());
    }
    strangers_.push_back({second, PeerName(from)});
  }
  take_(socket);
}

}  // namespace pelton
