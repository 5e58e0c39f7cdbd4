#include "comm/control/bind_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

#include "absl/strings/str_cat.h"
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

// Empty if there is none.
std::string FirstAddressOf(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if (interface == entry->ifa_name) return ToText(entry->ifa_addr);
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> ResolveBindAddress(const std::string& interface) {
  in_addr v4;
  in6_addr v6;
  const bool is_v4 = inet_pton(AF_INET, interface.c_str(), &v4) == 1;
  const bool is_v6 = inet_pton(AF_INET6, interface.c_str(), &v6) == 1;
  if ((is_v4 && v4.s_addr == INADDR_ANY) || (is_v6 && IN6_IS_ADDR_UNSPECIFIED(&v6))) {
    return absl::InvalidArgumentError(
        absl::StrCat("interface: is '", interface, "', would listen on every interface"));
  }
  if (is_v4) return interface;
  if (is_v6) return absl::StrCat("[", interface, "]");
  std::string address = FirstAddressOf(interface);
  if (!address.empty()) return address;
  return absl::NotFoundError(
      absl::StrCat("interface: '", interface, "' is no address and no interface with one"));
}

absl::StatusOr<uint32_t> ResolveIpv4(const std::string& interface) {
  ASSIGN_OR_RETURN(const std::string text, ResolveBindAddress(interface));
  in_addr address = {};
  if (inet_pton(AF_INET, text.c_str(), &address) == 1) return address.s_addr;
  return absl::UnimplementedError(absl::StrCat("interface: '", interface, "' has no IPv4 address"));
}

}  // namespace pelton
