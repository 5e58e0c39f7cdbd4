#include "backend/wire.h"

#include "backend/route.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<Transport>> ConnectWire(const std::string& name,
                                                       const std::string& coordinator_address,
                                                       TransportOptions options) {
  ASSIGN_OR_RETURN(const TransportRegistry::Entry wire, TransportRegistry::Get().Find(name));
  if (options.interface.empty()) {
    ASSIGN_OR_RETURN(options.interface, InterfaceTowards(coordinator_address));
  }
  return wire.factory(options);
}

}  // namespace pelton
