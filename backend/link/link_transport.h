// Communicators that live in the daemon of a trainer's rank.
#ifndef PELTON_BACKEND_LINK_LINK_TRANSPORT_H_
#define PELTON_BACKEND_LINK_LINK_TRANSPORT_H_

#include <memory>

#include "backend/link/link_client.h"
#include "comm/transport/transport.h"

namespace pelton {

// A transport whose communicators hand every operation to the daemon, which runs it among the
// daemons of the group's ranks. Memory in registered regions is used where it lies, because the
// daemon maps it; any other memory is staged. `client` is shared with the rank's LinkControl.
std::unique_ptr<Transport> MakeLinkTransport(std::shared_ptr<LinkClient> client);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINK_TRANSPORT_H_
