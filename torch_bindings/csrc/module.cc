// The extension module pelton._C: names and conversions only; see pelton/_C.pyi for the contract.
#include <torch/extension.h>

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/link/tool_server.h"
#include "comm/collectives/selection.h"
#include "comm/control/bind_address.h"
#include "comm/control/tls_options.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"
#include "torch_bindings/csrc/c10d/bind.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/log_lines.h"
#include "torch_bindings/csrc/python_communicator.h"
#include "torch_bindings/csrc/shared_allocator.h"
#include "torch_bindings/csrc/signals.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

std::vector<int32_t> NumbersOf(const std::vector<Rank>& ranks) {
  std::vector<int32_t> numbers;
  for (Rank rank : ranks) numbers.push_back(rank.value());
  return numbers;
}

const double kHeartbeatTimeoutSeconds = absl::ToDoubleSeconds(limits::kHeartbeatTimeout);

// Paths of certificate files by what they are; see TlsOptions.
using TlsPaths = std::map<std::string, std::string>;

TlsOptions TlsOf(const TlsPaths& paths) {
  TlsOptions tls;
  const std::map<std::string, std::string*> fields = {{"ca", &tls.ca_path},
                                                      {"certificate", &tls.certificate_path},
                                                      {"key", &tls.key_path},
                                                      {"server_name", &tls.server_name}};
  for (const auto& [name, path] : paths) *fields.at(name) = path;
  return tls;
}

std::shared_ptr<Backend> StartBackend(int32_t rank, int32_t world_size,
                                      std::string coordinator_address, std::string job_id,
                                      std::string job_token, double timeout_s,
                                      double join_timeout_s, const TlsPaths& tls,
                                      std::string interface, std::string host_label,
                                      std::string schedules, std::string wire,
                                      double heartbeat_timeout_s) {
  ThrowIfError(CheckNotForkedChild());
  BackendOptions options;
  options.rank = Rank(rank);
  options.world_size = WorldSize(world_size);
  options.job = std::move(job_id);
  options.token = std::move(job_token);
  options.coordinator_address = std::move(coordinator_address);
  options.tls = TlsOf(tls);
  options.operation_timeout = absl::Seconds(timeout_s);
  options.join_timeout = absl::Seconds(join_timeout_s);
  options.interface = std::move(interface);
  options.host_label = std::move(host_label);
  options.schedules = std::move(schedules);
  options.wire = std::move(wire);
  options.heartbeat_timeout = absl::Seconds(heartbeat_timeout_s);
  WatchForks();
  std::shared_ptr<Backend> backend = MakeProcessShared(ValueOrThrow(Backend::Start(options)));
  SharedPool().AddObserver(
      backend, [borrowed = backend.get()](const Region& region) { borrowed->Share(region); });
  return backend;
}

// A coordinator that Python can stop before it lets go of it.
struct PythonCoordinator {
  std::string address;
  ProcessPtr<CoordinatorServer> server;
};

PythonCoordinator ServeCoordinator(const std::string& bind, const std::string& job_token,
                                   const TlsPaths& tls, double heartbeat_timeout_s) {
  ThrowIfError(CheckNotForkedChild());
  WatchForks();
  std::unique_ptr<CoordinatorServer> server = ValueOrThrow(
      ServeCoordinatorAt(bind, job_token, TlsOf(tls), absl::Seconds(heartbeat_timeout_s)));
  std::string address = server->address();
  return {std::move(address), std::move(server)};
}

// The door for tools of a rank; it goes before the backend, which it looks at.
struct PythonToolServer {
  std::shared_ptr<Backend> backend;  // shared with Python
  ProcessPtr<ToolServer> server;
};

PythonToolServer ServeTools(std::shared_ptr<Backend> backend, const std::string& path) {
  ThrowIfError(CheckNotForkedChild());
  std::unique_ptr<ToolServer> server = ValueOrThrow(ToolServer::StartFor(backend.get(), path));
  return {std::move(backend), std::move(server)};
}

ProcessPtr<PythonCommunicator> OpenCommunicator(std::shared_ptr<Backend> backend,
                                                const std::vector<int32_t>& ranks, std::string name,
                                                std::string schedules) {
  ThrowIfError(CheckNotForkedChild());
  return ProcessPtr<PythonCommunicator>(std::make_unique<PythonCommunicator>(
      std::move(backend), Group::Of(ranks), std::move(name), std::move(schedules)));
}

auto Telling(TrainerMark mark) {
  return [mark](Backend& self, double timeout_s) {
    ThrowIfError(self.Tell(mark, Clock::Real().Now() + absl::Seconds(timeout_s)));
  };
}

void DefineBackend(py::module_& module) {
  py::class_<Backend, std::shared_ptr<Backend>>(module, "Backend")
      .def(py::init(&StartBackend), py::arg("rank"), py::arg("world_size"),
           py::arg("coordinator_address"), py::arg("job_id"), py::arg("job_token"),
           py::arg("timeout_s"), py::arg("join_timeout_s"), py::arg("tls") = TlsPaths(),
           py::arg("interface") = "", py::arg("host_label") = "", py::arg("schedules") = "",
           py::arg("wire") = "tcp", py::arg("heartbeat_timeout_s") = kHeartbeatTimeoutSeconds,
           NoGil())
      .def_property_readonly("rank", [](const Backend& self) { return self.rank().value(); })
      .def_property_readonly("world_size",
                             [](const Backend& self) { return self.world_size().value(); })
      .def_static("serve_coordinator", &ServeCoordinator, py::arg("bind"), py::arg("job_token"),
                  py::arg("tls") = TlsPaths(),
                  py::arg("heartbeat_timeout_s") = kHeartbeatTimeoutSeconds, NoGil())
      .def("communicator", &OpenCommunicator, py::arg("ranks"), py::arg("name") = "",
           py::arg("schedules") = "", NoGil())
      .def("serve_tools", &ServeTools, py::arg("path"), NoGil())
      .def("host_ranks", [](const Backend& self) { return NumbersOf(self.host_ranks()); })
      .def("host_of", [](const Backend& self) { return self.hosts().host_of; })
      .def_property_readonly("host_warning", &Backend::host_warning)
      .def_property_readonly("is_heir", &Backend::is_heir)
      .def("tell_set_up_is_over", Telling(TrainerMark::kSetUpIsOver), py::arg("timeout_s"), NoGil())
      .def("tell_snapshot_is_kept", Telling(TrainerMark::kSnapshotIsKept), py::arg("timeout_s"),
           NoGil())
      .def("tell_snapshot_begins", Telling(TrainerMark::kSnapshotBegins), py::arg("timeout_s"),
           NoGil())
      .def("tell_snapshot_is_through", Telling(TrainerMark::kSnapshotIsThrough),
           py::arg("timeout_s"), NoGil())
      .def(
          "stop",
          [](Backend& self, double timeout_s) {
            if (IsForkedChild()) return;
            ThrowIfError(self.Stop(Clock::Real().Now() + absl::Seconds(timeout_s)));
          },
          py::arg("timeout_s"), NoGil());
  py::class_<PythonToolServer>(module, "ToolServer")
      .def(
          "stop",
          [](PythonToolServer& self) {
            if (!IsForkedChild()) self.server.reset();
          },
          NoGil());
  py::class_<PythonCoordinator>(module, "Coordinator")
      .def_readonly("address", &PythonCoordinator::address)
      .def(
          "stop",
          [](PythonCoordinator& self, double timeout_s) {
            if (self.server == nullptr || IsForkedChild()) return;
            // The coordinator stays until the other ranks have left, because a rank that leaves
            // later would report a lost coordinator.
            (void)self.server->AwaitEmpty(Clock::Real().Now() + absl::Seconds(timeout_s));
            self.server.reset();
          },
          py::arg("timeout_s"), NoGil());
}

std::vector<std::pair<std::string, std::string>> ListAlgorithms() {
  std::vector<std::pair<std::string, std::string>> listed;
  for (const auto& entry : AlgorithmRegistry::Get().List())
    listed.emplace_back(entry.name, entry.summary);
  return listed;
}

py::dict DescribeAlgorithm(const std::string& name) {
  const AlgorithmDescription description = ValueOrThrow(DescriptionOf(name));
  std::vector<std::string> dtypes;
  for (const DType dtype : description.dtypes) dtypes.emplace_back(NameOf(dtype));
  std::vector<std::array<std::string, 4>> options;
  for (const OptionDescription& option : description.options) {
    options.push_back({option.name, option.default_value, option.values, option.meaning});
  }
  return py::dict(py::arg("summary") = description.summary,
                  py::arg("subject") = description.subject,
                  py::arg("bytes_sent") = description.bytes_sent, py::arg("dtypes") = dtypes,
                  py::arg("ranks_agree") = description.ranks_agree,
                  py::arg("takes_device_memory") = description.takes_device_memory,
                  py::arg("options") = options);
}

void CheckAlgorithm(const std::string& name, const AlgorithmOptions& options) {
  ThrowIfError(MakeAlgorithm(name, options).status());
}

std::vector<std::string> ListSchedules(const std::string& kind, int32_t world_size) {
  return ValueOrThrow(RecipesFor(kind, world_size));
}

std::string BindAddress(const std::string& interface) {
  return ValueOrThrow(ResolveBindAddress(interface));
}

at::Tensor Empty(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  return EmptyShared(shape, dtype);
}

}  // namespace
}  // namespace pelton::torch_bindings

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  namespace bindings = pelton::torch_bindings;
  bindings::RegisterStatusTranslator();
  bindings::HearSignals();
  module.def("set_log_sink", &bindings::SetPythonLogSink, pybind11::arg("sink"));
  module.def(
      "set_stall_seconds", [](double seconds) { pelton::SetStallInterval(absl::Seconds(seconds)); },
      pybind11::arg("seconds"));
  module.def("is_forked_child", &pelton::IsForkedChild);
  bindings::DefineBackend(module);
  bindings::DefineCommunicator(module);
  bindings::DefineModel(module);
  bindings::DefineUserModel(module);
  bindings::DefineC10d(module);
  bindings::DefineGraphs(module);
  bindings::DefineWindows(module);
  bindings::DefineQueue(module);
  bindings::DefineCopies(module);
  module.def("algorithms", &bindings::ListAlgorithms);
  module.def("describe_algorithm", &bindings::DescribeAlgorithm, pybind11::arg("name"));
  module.def("check_algorithm", &bindings::CheckAlgorithm, pybind11::arg("name"),
             pybind11::arg("options"));
  module.def("schedules", &bindings::ListSchedules, pybind11::arg("kind"),
             pybind11::arg("world_size"));
  module.def("bind_address", &bindings::BindAddress, pybind11::arg("interface"));
  module.def("empty", &bindings::Empty, pybind11::arg("shape"), pybind11::arg("dtype"));
  module.def("set_gradient_allocator", &bindings::SharedAllocation::SetEnabled,
             pybind11::arg("enabled"));
  module.def("begin_shared_allocation", &bindings::SharedAllocation::BeginAll);
  module.def("end_shared_allocation", &bindings::SharedAllocation::EndAll);
}
