#include "backend/link/attach.h"

#include <memory>
#include <utility>

#include "backend/link/link_client.h"
#include "backend/link/link_communicator.h"
#include "backend/link/link_control.h"
#include "core/base/status.h"

namespace pelton {

bool IsLinkAddress(absl::string_view address) {
  return address.substr(0, kLinkAddressPrefix.size()) == kLinkAddressPrefix;
}

std::string PathOfLink(absl::string_view address) {
  return std::string(address.substr(kLinkAddressPrefix.size()));
}

absl::StatusOr<LinkedParts> AttachToDaemon(const DaemonPlace& place, absl::Time deadline) {
  ASSIGN_OR_RETURN(
      std::shared_ptr<LinkClient> client,
      LinkClient::Attach({place.path, place.job, place.rank, place.world_size}, deadline));
  LinkedParts parts;
  const proto::LinkWelcome& welcome = client->welcome();
  parts.membership.generation = Generation(welcome.generation());
  parts.hosts.host_of.assign(welcome.host_of().begin(), welcome.host_of().end());
  parts.host_warning = welcome.host_warning();
  parts.is_heir = welcome.is_heir();
  parts.mark = [client](TrainerMark mark, absl::Time until) {
    proto::LinkCall call;
    call.set_mark(static_cast<proto::LinkMark>(mark));
    return client->Call(std::move(call), until).status();
  };
  parts.control = MakeLinkControl(client);
  parts.transport = MakeLinkTransport(std::move(client));
  return parts;
}

}  // namespace pelton
