// What a backend has behind its seams when a daemon works for it: the link, and the control plane
// as a trainer has it at its daemon.
#ifndef PELTON_BACKEND_LINK_ATTACH_H_
#define PELTON_BACKEND_LINK_ATTACH_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backend/hosts.h"
#include "backend/link/link_client.h"
#include "comm/control/control.h"
#include "comm/transport/transport.h"
#include "core/base/ids.h"

namespace pelton {

// A control whose rank has joined already: Join fails. Its orders come from the daemon, whose end
// is one of them.
std::unique_ptr<Control> MakeLinkControl(std::shared_ptr<LinkClient> client);

// The link that `control` uses; null where it is no control of a link.
LinkClient* LinkOf(Control& control);

// Whether a backend is to attach to a daemon ("unix:<path>") and not to join at a coordinator.
bool IsLinkAddress(absl::string_view address);
std::string PathOfLink(absl::string_view address);

// Where the daemon is, and which rank of which job it must be.
struct DaemonPlace {
  std::string path;
  std::string job;
  Rank rank;
  WorldSize world_size;
};

// How far a trainer has come: the numbers of proto::LinkMark.
enum class TrainerMark {
  kSetUpIsOver = 1,  // which an heir is given once more
  kSnapshotIsKept,   // it has all that an heir needs of this process
  // The same of one that is copied beside training: what this process gets after it has begun is
  // not in it, and it counts once it is through.
  kSnapshotBegins,
  kSnapshotIsThrough,
  kHasNoHeir,  // no other process can go on in the place of this one
};

// Threads: a value. Owns: its parts, which share the link.
struct LinkedParts {
  std::unique_ptr<Control> control;
  std::unique_ptr<Transport> transport;
  HostMap hosts;
  std::string host_warning;
  bool is_heir = false;  // in the place of a trainer that has died
  // Tells the daemon.
  std::function<absl::Status(TrainerMark mark, absl::Time deadline)> mark;
};

// Errors: those of LinkClient::Attach.
absl::StatusOr<LinkedParts> AttachToDaemon(const DaemonPlace& place, absl::Time deadline);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_ATTACH_H_
