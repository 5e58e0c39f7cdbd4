// The control plane as a trainer has it: at its daemon.
#ifndef PELTON_BACKEND_LINK_LINK_CONTROL_H_
#define PELTON_BACKEND_LINK_LINK_CONTROL_H_

#include <memory>

#include "backend/link/link_client.h"
#include "comm/control/control.h"

namespace pelton {

// A control whose rank has joined already: Join fails. Its orders come from the daemon, whose end
// is one of them.
std::unique_ptr<Control> MakeLinkControl(std::shared_ptr<LinkClient> client);

// The link that `control` uses; null where it is no control of a link.
LinkClient* LinkOf(Control& control);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINK_CONTROL_H_
