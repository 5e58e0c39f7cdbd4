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
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

// Empty if it has none.
std::string FirstIpv4Of(absl::string_view interface, const ifaddrs* list) {
  for (; list != nullptr; list = list->ifa_next) {
    if (list->ifa_addr == nullptr || list->ifa_addr->sa_family != AF_INET) continue;
    if (interface == list->ifa_name) return IdentityOf(list->ifa_addr);
  }
  return "";
}

}  // namespace

absl::StatusOr<HostAndPort> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat("address: '", address, "' is not host:port"));
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ':')) {
    return absl::InvalidArgumentError(
        absl::StrCat("address: '", address, "' is not host:port; put an IPv6 address in brackets"));
  }
  return HostAndPort{std::move(host), address.substr(colon + 1)};
}

absl::StatusOr<std::string> InterfaceTowards(const std::string& address) {
  ASSIGN_OR_RETURN(const HostAndPort where, SplitAddress(address));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &list);
  if (failed != 0) {
    return absl::NotFoundError(absl::StrCat("address: '", address, "': ", gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  const absl::StatusOr<sockaddr_storage> source = SourceTowards(*list);
  if (!source.ok()) return Annotate(source.status(), absl::StrCat("address: '", address, "'"));
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return absl::ErrnoToStatus(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> freed(interfaces, &freeifaddrs);
  return InterfaceWith(reinterpret_cast<const sockaddr&>(*source), interfaces);
}

absl::StatusOr<std::string> InterfaceWith(const sockaddr& source, const ifaddrs* list) {
  const std::string identity = IdentityOf(&source);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || IdentityOf(entry->ifa_addr) != identity) continue;
    // Who listens at an interface's name listens at its first IPv4 address.
    const bool is_first = FirstIpv4Of(entry->ifa_name, list) == identity;
    if (is_first || source.sa_family != AF_INET) return std::string(entry->ifa_name);
    char text[INET_ADDRSTRLEN];
    const in_addr& v4 = reinterpret_cast<const sockaddr_in&>(source).sin_addr;
    return std::string(inet_ntop(AF_INET, &v4, text, sizeof(text)));
  }
  return absl::NotFoundError(
      "no interface of this host has the address that its route starts from; check its network");
}

}  // namespace pelton
