// A process's door for tools: gRPC over a Unix socket.
#ifndef PELTON_BACKEND_LINK_TOOL_SERVER_H_
#define PELTON_BACKEND_LINK_TOOL_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "backend/backend.h"

namespace pelton {

namespace proto {
class LinkStatus;
}

// What the process does for tools. Threads: called by any. Owns: what it has captured.
struct ToolAnswers {
  std::function<void(proto::LinkStatus*)> status;
  std::function<void()> stop;  // empty: this process is not to be ended by tools
};

// Serves pelton.proto.Daemon, grpc.health.v1 and reflection at a Unix socket: that of a daemon, or
// of a rank whose backend is in its own process. No caller is asked for a token, because the code
// that makes the socket's folder makes it accessible to this user alone. It needs nothing of the
// threads that train, so that it answers while they are stuck.
// Threads: any; gRPC has its own. Owns: the gRPC server and its socket.
class ToolServer {
 public:
  // A socket that an earlier process has left is replaced. Errors: Unavailable: gRPC cannot listen
  // at `path`.
  static absl::StatusOr<std::unique_ptr<ToolServer>> Start(std::string path, ToolAnswers answers);
  // For a rank whose backend is in this process; `backend` is borrowed and outlives the server.
  static absl::StatusOr<std::unique_ptr<ToolServer>> StartFor(const Backend* backend,
                                                              std::string path);
  // Blocks: until calls under way have ended, a second at most.
  ~ToolServer();

  // What grpc.health.v1 answers; true at first.
  void SetHealthy(bool is_healthy);

 private:
  class Service;

  explicit ToolServer(std::unique_ptr<Service> service);

  const std::unique_ptr<Service> service_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TOOL_SERVER_H_
