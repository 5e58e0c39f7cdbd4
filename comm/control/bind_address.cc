#include "comm/control/bind_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {
namespace {

std::string ToText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN];
  if (address->sa_family == AF_INET) {
    const in_addr& v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return inet_ntop(AF_INET, &v4, text, sizeof(text));
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return absl::StrCat("[", inet_ntop(AF_INET6, &v6, text, sizeof(text)), "]");
}

// Such an address means nothing without the name of an interface, which getaddrinfo does not give.
bool IsLinkLocal(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

// Empty if there is none.
std::string FirstAddressOf(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if (interface == entry->ifa_name && !IsLinkLocal(entry->ifa_addr))
        return ToText(entry->ifa_addr);
    }
  }
  return "";
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const in_addr& v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

// `flags`: of getaddrinfo. Empty if there is none.
std::string AddressOfHost(const std::string& name, int flags) {
  addrinfo hints = {};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  return BestAddressOf(list);
}

bool IsWildcard(const std::string& address) {
  // The last is IPv4's in IPv6, at which all IPv4 interfaces listen.
  return address == "0.0.0.0" || address == "[::]" || address == "[::ffff:0.0.0.0]";
}

absl::StatusOr<std::string> CheckBindAddress(const std::string& interface,
                                             const std::string& address, const char* otherwise) {
  if (address.empty()) {
    return absl::NotFoundError(
        absl::StrCat("interface: '", interface, "' is no address to listen at", otherwise));
  }
  if (IsWildcard(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("interface: is '", interface, "', would listen on every interface"));
  }
  return address;
}

}  // namespace

std::string BestAddressOf(const addrinfo* list) {
  for (const bool is_loopback : {false, true}) {
    for (const int family : {AF_INET, AF_INET6}) {
      for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        if (entry->ai_family != family || IsLoopback(entry->ai_addr) != is_loopback) continue;
        if (!IsLinkLocal(entry->ai_addr)) return ToText(entry->ai_addr);
      }
    }
  }
  return "";
}

absl::StatusOr<std::string> ResolveBindAddress(const std::string& interface) {
  std::string address = FirstAddressOf(interface);
  if (address.empty()) address = AddressOfHost(interface, AI_NUMERICHOST);
  return CheckBindAddress(interface, address, ", and no network interface with one");
}

absl::StatusOr<std::string> ResolveServingAddress(const std::string& host) {
  absl::StatusOr<std::string> address = ResolveBindAddress(host);
  if (!absl::IsNotFound(address.status())) return address;
  const std::string found = AddressOfHost(host, 0);
  if (absl::StartsWith(found, "127.") && host != "localhost") {
    Log(LogLevel::kWarning,
        absl::StrCat("'", host, "' is ", found,
                     " on this host, which no other host reaches; where ",
                     "there are others, serve at an address of the network between them"));
  }
  return CheckBindAddress(host, found, ", no network interface with one, and no host's name");
}

absl::StatusOr<std::string> ResolveInterfaceName(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::ErrnoToStatus(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (interface == entry->ifa_name) return interface;
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if (interface == ToText(entry->ifa_addr)) return std::string(entry->ifa_name);
  }
  return absl::NotFoundError(absl::StrCat("interface: '", interface,
                                          "' is no network interface of this host, nor an IPv4 "
                                          "address of one"));
}

absl::StatusOr<uint32_t> ResolveIpv4(const std::string& interface) {
  ASSIGN_OR_RETURN(const std::string text, ResolveBindAddress(interface));
  in_addr address = {};
  if (inet_pton(AF_INET, text.c_str(), &address) == 1) return address.s_addr;
  return absl::UnimplementedError(absl::StrCat("interface: '", interface, "' has no IPv4 address"));
}

}  // namespace pelton
