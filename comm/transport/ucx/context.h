// UCX's library state, set up for one network interface.
#ifndef PELTON_COMM_TRANSPORT_UCX_CONTEXT_H_
#define PELTON_COMM_TRANSPORT_UCX_CONTEXT_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pelton::ucx {

// "UCX: <what>: <UCX's words>".
absl::Status ToStatus(ucs_status_t status, absl::string_view what);

// Threads: immutable once made; UCX orders what its workers share. Owns: the ucp_context.
class Context {
 public:
  // `interface` is the name of a network interface; "" is loopback. Variables UCX_* that the user
  // has set win over ours, and PELTON_UCX_TLS names the wires (default "tcp,self"). Errors:
  // NotFound: no such interface, or UCX is not installed. Unavailable: none of the wires runs on
  // the interface.
  static absl::StatusOr<std::unique_ptr<Context>> Make(const std::string& interface);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ucp_context_h handle() const { return handle_; }
  const std::string& interface() const { return interface_; }

 private:
  Context(ucp_context_h handle, std::string interface);

  ucp_context_h handle_;
  std::string interface_;
};

}  // namespace pelton::ucx

#endif  // PELTON_COMM_TRANSPORT_UCX_CONTEXT_H_
