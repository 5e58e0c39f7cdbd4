// The folder that a daemon's socket lies in.
#ifndef PELTON_TOOLS_DAEMON_SOCKET_FOLDER_H_
#define PELTON_TOOLS_DAEMON_SOCKET_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace pelton {

// Sees to it that nobody but this user can enter the folder of `socket`; makes it where it is
// missing. Errors: PermissionDenied: it is another user's, or open to others; NotFound: the folder
// above it is missing.
absl::Status PrepareSocketFolder(const std::string& socket);

// Removes that folder with what trainers have left in it, unless anything else is there: the socket
// of another daemon, or what is nobody's here.
void RemoveSocketFolder(const std::string& socket);

}  // namespace pelton

#endif  // PELTON_TOOLS_DAEMON_SOCKET_FOLDER_H_
