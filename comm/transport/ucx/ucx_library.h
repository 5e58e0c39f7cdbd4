// UCX as a table of functions, looked up when its wire is asked for: a machine without UCX loads
// the same binary. And its state, set up for one network interface.
#ifndef PELTON_COMM_TRANSPORT_UCX_UCX_LIBRARY_H_
#define PELTON_COMM_TRANSPORT_UCX_UCX_LIBRARY_H_

#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// The functions of UCX that are called, under UCX's own names. ucp_init is not among them because
// it is an inline function over ucp_init_version.
#define PELTON_UCX_FUNCTIONS(X)     \
  X(ucp_am_data_release)            \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_am_send_nbx)                \
  X(ucp_cleanup)                    \
  X(ucp_config_modify)              \
  X(ucp_config_read)                \
  X(ucp_config_release)             \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_create)                  \
  X(ucp_init_version)               \
  X(ucp_request_check_status)       \
  X(ucp_request_free)               \
  X(ucp_worker_arm)                 \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_flush_nbx)           \
  X(ucp_worker_get_address)         \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_progress)            \
  X(ucp_worker_release_address)     \
  X(ucp_worker_set_am_recv_handler) \
  X(ucs_debug_disable_signal)       \
  X(ucs_global_opts_set_value)      \
  X(ucs_status_string)

namespace pelton::ucx {

// Threads: immutable once loaded. Owns: nothing, the library stays for the life of the process.
struct UcxLibrary {
#define PELTON_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  PELTON_UCX_FUNCTIONS(PELTON_UCX_MEMBER)
#undef PELTON_UCX_MEMBER
  ucm_global_config_t* ucm_global_opts = nullptr;
};

// Looks libucp.so.0 up, or what PELTON_UCX_LIBRARY names, once a process. Blocks: while the loader
// reads files, the first time. Errors: NotFound: no such library; Unimplemented: names the function
// that it lacks. Both say what to install.
absl::Status LoadUcx();

// The table that LoadUcx has filled. A call without a successful LoadUcx is a broken invariant.
const UcxLibrary& Ucx();

// "UCX: <what>: <UCX's words>".
absl::Status ToStatus(ucs_status_t status, absl::string_view what);

// Threads: immutable once made; UCX orders what its workers share. Owns: the ucp_context.
class Context {
 public:
  // `interface` is the name of a network interface, or a numeric IPv4 address of one; "" is
  // loopback. Variables UCX_* that the user has set win over ours, and PELTON_UCX_TLS names the
  // wires (default "tcp,self"). Errors: NotFound: no such interface, or UCX is not installed.
  // Unavailable: none of the wires runs on the interface.
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

#endif  // PELTON_COMM_TRANSPORT_UCX_UCX_LIBRARY_H_
