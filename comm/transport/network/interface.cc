#include "comm/transport/network/interface.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/strings/str_cat.h"
#include "comm/control/bind_address.h"
#include "core/base/status.h"

namespace pelton::network {

absl::StatusOr<uint32_t> HostOf(const std::string& interface) {
  ASSIGN_OR_RETURN(const std::string text, ResolveBindAddress(interface));
  in_addr address = {};
  if (inet_pton(AF_INET, text.c_str(), &address) == 1) return address.s_addr;
  return absl::UnimplementedError(absl::StrCat("interface: '", interface, "' has no IPv4 address"));
}

}  // namespace pelton::network
