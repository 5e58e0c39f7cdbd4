// The port of a coordinator. Clients that have not shown the job's token may hold only so many
// connections.
#ifndef PELTON_COMM_CONTROL_CONNECTION_DOOR_H_
#define PELTON_COMM_CONTROL_CONNECTION_DOOR_H_

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/sharing.h"
#include "core/base/threads.h"

namespace pelton {

// Accepts connections on a thread of its own and hands them on. Of those that are nobody's yet the
// oldest is ended when there are too many, so that strangers keep no rank out, and leave this
// process its descriptors. Threads: any. Owns: the port, the thread, and a second descriptor of
// each stranger's connection.
class ConnectionDoor {
 public:
  // Gets a connected socket, and owns it.
  using Take = std::function<void(int socket)>;

  // Listens at `host`, a numeric address (IPv6 in brackets); port 0 takes a free one. Errors:
  // Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<ConnectionDoor>> Listen(const std::string& host, int port);
  ~ConnectionDoor();
  ConnectionDoor(const ConnectionDoor&) = delete;
  ConnectionDoor& operator=(const ConnectionDoor&) = delete;

  // "<host>:<port>".
  const std::string& address() const { return address_; }
  // Lets connections in from now on; once.
  void Open(size_t max_strangers, Take take);
  // Lets nobody in any more; `take` is not called afterwards. Blocks: never for long.
  void Close();
  // The connection of `peer`, named as gRPC does ("ipv4:10.0.0.7:41234"), is a rank's.
  void Admit(absl::string_view peer);

 private:
  // Threads: a value. Owns: the second descriptor.
  struct Stranger {
    Stranger(int socket, std::string peer) : socket(socket), peer(std::move(peer)) {}
    ~Stranger();
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;

    const int socket;
    const std::string peer;
  };
  // Shared: the thread may be waiting for one that has just been admitted.
  using StrangerPointer = std::shared_ptr<Stranger>;

  ConnectionDoor() = default;
  absl::Status Bind(const std::string& host, int port);
  // What the thread waits for: a connection, or an end of one.
  absl::Time Enter(std::vector<pollfd>& entries);
  void LookAt(const std::vector<pollfd>& entries);
  void AcceptAll();
  void Welcome(int socket, const sockaddr_storage& from);

  std::string address_;
  int listener_ = -1;
  size_t max_strangers_ = 0;
  Take take_;
  SharedList<StrangerPointer> strangers_;  // the oldest first; the thread adds them

  // The thread's.
  bool lacks_descriptors_ = false;
  std::vector<StrangerPointer> watched_;  // that it waits for, behind the listener

  PollThread thread_{"pelton-door"};  // last: its callbacks use the others
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_CONNECTION_DOOR_H_
