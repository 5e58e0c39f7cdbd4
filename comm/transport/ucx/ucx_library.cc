#include "comm/transport/ucx/ucx_library.h"

#include <signal.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "comm/control/bind_address.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::ucx {
namespace {

// The loader also searches libucs and libucm, because libucp depends on them.
absl::Status Bind(const SharedLibrary& library, const char* name, void** function) {
  return Annotate(library.Bind(name, *function), "Pelton needs UCX 1.13 or newer");
}

// UCX patches mmap and its kind for the whole process while it is being loaded, unless its variable
// forbids that. The variable is gone again afterwards, so that no child inherits it.
absl::StatusOr<SharedLibrary> FindWithoutHooks(const LibrarySearch& search) {
  constexpr char kMemoryEvents[] = "UCX_MEM_EVENTS";
  if (std::getenv(kMemoryEvents) != nullptr) return SharedLibrary::Find(search);
  setenv(kMemoryEvents, "n", /*overwrite=*/0);
  absl::StatusOr<SharedLibrary> library = SharedLibrary::Find(search);
  unsetenv(kMemoryEvents);
  return library;
}

absl::StatusOr<UcxLibrary> Load() {
  absl::StatusOr<SharedLibrary> library =
      FindWithoutHooks({"", {"libucp.so.0"}, "PELTON_UCX_LIBRARY"});
  if (!library.ok()) {
    return Annotate(library.status(),
                    "wire 'ucx' needs UCX (Debian: apt-get install libucx0, or set "
                    "PELTON_UCX_LIBRARY to a libucp.so.0)");
  }
  UcxLibrary table;
#define PELTON_UCX_BIND(name) \
  RETURN_IF_ERROR(Bind(*library, #name, reinterpret_cast<void**>(&table.name)));
  PELTON_UCX_FUNCTIONS(PELTON_UCX_BIND)
  PELTON_UCX_BIND(ucm_global_opts)
#undef PELTON_UCX_BIND
  return table;
}

const absl::StatusOr<UcxLibrary>& Loaded() {
  static const auto& library = *new absl::StatusOr<UcxLibrary>(Load());
  return library;
}

struct Setting {
  const char* name;
  const char* value;
};

// docs/network.md gives the reasons and what was measured.
constexpr Setting kSettings[] = {
    {"MAX_EAGER_LANES", "1"},  // keeps a peer's messages in order
    // UCX 1.13's TCP wire ends the process when a connection breaks under a send without copy.
    {"ZCOPY_THRESH", "inf"},
    {"TCP_PUT_ENABLE", "n"},
    {"TCP_TX_SEG_SIZE", "64k"},  // without these, a system call per 8 KiB
    {"TCP_RX_SEG_SIZE", "64k"},
    {"KEEPALIVE_INTERVAL", "2s"},
    {"TCP_KEEPIDLE", "3s"},
    {"TCP_KEEPINTVL", "1s"},
    {"TCP_KEEPCNT", "3"},
    {"TCP_PREFER_DEFAULT", "n"},  // the interface is named, also
                                  // where it has no default route
};

bool IsSetByUser(const char* name) { return std::getenv(absl::StrCat("UCX_", name).c_str()); }

// UCX belongs to us in this process: it leaves memory calls and signals alone, and speaks through
// our statuses. These switches are the process's, and UCX has read the environment by now.
void QuietenLibrary() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!IsSetByUser("MEM_EVENTS")) Ucx().ucm_global_opts->enable_events = 0;
    if (!IsSetByUser("LOG_LEVEL")) Ucx().ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    if (IsSetByUser("HANDLE_ERRORS")) return;
    for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE})
      Ucx().ucs_debug_disable_signal(number);
  });
}

absl::Status Configure(ucp_config_t* config, const std::string& interface) {
  auto set = [config](const char* name, const std::string& value) {
    if (IsSetByUser(name)) return absl::OkStatus();
    return ToStatus(Ucx().ucp_config_modify(config, name, value.c_str()),
                    absl::StrCat("setting ", name, " to ", value));
  };
  const char* const wires = std::getenv("PELTON_UCX_TLS");
  RETURN_IF_ERROR(set("TLS", wires != nullptr ? wires : "tcp,self"));
  RETURN_IF_ERROR(set("NET_DEVICES", interface));
  for (const Setting& setting : kSettings) RETURN_IF_ERROR(set(setting.name, setting.value));
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadUcx() { return Loaded().status(); }

const UcxLibrary& Ucx() {
  PELTON_CHECK_OK(Loaded().status());
  return *Loaded();
}

absl::Status ToStatus(ucs_status_t status, absl::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("UCX: ", what, ": ", Ucx().ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<Context>> Context::Make(const std::string& interface) {
  const std::string given = interface.empty() ? "lo" : interface;
  ASSIGN_OR_RETURN(const std::string device, ResolveInterfaceName(given));
  RETURN_IF_ERROR(LoadUcx());
  QuietenLibrary();
  ucp_config_t* config = nullptr;
  RETURN_IF_ERROR(
      ToStatus(Ucx().ucp_config_read(nullptr, nullptr, &config), "reading the settings"));
  absl::Status configured = Configure(config, device);
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  ucp_context_h handle = nullptr;
  if (configured.ok()) {
    configured =
        ToStatus(Ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &handle),
                 absl::StrCat("starting on interface '", device, "'"));
  }
  Ucx().ucp_config_release(config);
  RETURN_IF_ERROR(configured);
  return std::unique_ptr<Context>(new Context(handle, given));
}

Context::Context(ucp_context_h handle, std::string interface)
    : handle_(handle), interface_(std::move(interface)) {}

Context::~Context() { Ucx().ucp_cleanup(handle_); }

}  // namespace pelton::ucx
