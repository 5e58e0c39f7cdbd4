#include "backend/route.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// The bytes that identify an address of either family, without its port.
std::string IdentityOf(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const in_addr& v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return std::string(reinterpret_cast<const char*>(&v4), sizeof(v4));
  }
  if (address->sa_family != AF_INET6) return "";
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return std::string(reinterpret_cast<const char*>(&v6), sizeof(v6));
}

// The address from which a datagram to `target` would be sent.
absl::StatusOr<sockaddr_storage> SourceTowards(const addrinfo& target) {
  const int socket = ::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return absl::ErrnoToStatus(errno, "socket");
  sockaddr_storage source = {};
  socklen_t size = sizeof(source);
  const bool found = connect(socket, target.ai_addr, target.ai_addrlen) == 0 &&
                     getsockname(socket, reinterpret_cast<sockaddr*>(&source), &size) == 0;
  const int error = errno;
  close(socket);
  if (!found)
    return absl::NotFoundError(absl::StrCat("this host has no route there (", std::strerror(error),
                                            "); check its network"));
  return source;
}

absl::StatusOr<std::string> InterfaceWith(const std::string& identity) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::ErrnoToStatus(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    if (IdentityOf(entry->ifa_addr) == identity) return std::string(entry->ifa_name);
  }
  return absl::NotFoundError(
      "no interface of this host has the address that its route starts from; check its network");
}

}  // namespace

absl::StatusOr<std::string> InterfaceTowards(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat("address: '", address, "' is not host:port"));
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &list);
  if (failed != 0) {
    return absl::NotFoundError(absl::StrCat("address: '", address, "': ", gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  const absl::StatusOr<sockaddr_storage> source = SourceTowards(*list);
  if (!source.ok()) return Annotate(source.status(), absl::StrCat("address: '", address, "'"));
  return InterfaceWith(IdentityOf(reinterpret_cast<const sockaddr*>(&*source)));
}

}  // namespace pelton
