// The port of a coordinator: who has not shown the job's token may hold only so many connections.
#ifndef PELTON_COMM_CONTROL_CONNECTION_DOOR_H_
#define PELTON_COMM_CONTROL_CONNECTION_DOOR_H_

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/sync.h"

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
  struct Stranger {
    int socket = -1;  // the second descriptor
    std::string peer;
    bool is_known = false;
  };

  ConnectionDoor() = default;
  absl::Status Bind(const std::string& host, int port);
  void Run();
  // Waits for a connection, an end of one, or Poke.
  void AwaitNews();
  void AcceptAll();
  void Welcome(int socket, const sockaddr_storage& from);
  void Forget(std::deque<Stranger>::iterator stranger) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Poke();

  std::string address_;
  int listener_ = -1;
  int wake_ = -1;  // an eventfd
  size_t max_strangers_ = 0;
  Take take_;
  bool lacks_descriptors_ = false;  // the thread's
  Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Stranger> strangers_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  std::thread thread_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_CONNECTION_DOOR_H_
