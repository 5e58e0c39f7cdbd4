#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <cxxabi.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/round/trigger.h"
#include "torch_bindings/csrc/averaging_control.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/profiler_range.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/tensors.h"
#include "torch_bindings/csrc/user_algorithm.h"
#include "torch_bindings/csrc/user_model.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

// The runtime's threads may wait for the GIL, and what is dropped waits for them.
template <typename T>
void DropWithoutGil(std::shared_ptr<T>& dropped) {
  if (PyGILState_Check() == 0) return dropped.reset();
  const py::gil_scoped_release no_gil;
  dropped.reset();
}

// An interpreter that is finalized ends each thread that asks for its lock, here while a function
// of the user's goes on and the process ends. The frames of C++ below do not expect that, and would
// end the process by a signal. So the thread rests until the process is gone.
[[noreturn]] void RestForEver() {
  for (;;) pause();
}

// The runtime drops functions on threads of its own.
std::shared_ptr<py::function> Keep(py::function function) {
  return {new py::function(std::move(function)), [](py::function* kept) {
            if (Py_IsInitialized() == 0) return;  // the process ends, and its objects with it
            try {
              const py::gil_scoped_acquire gil;
              delete kept;
            } catch (const abi::__forced_unwind&) {
              RestForEver();
            }
          }};
}

PyObject* CallUnlessFinalized(PyObject* function) {
  try {
    return PyObject_CallNoArgs(function);
  } catch (const abi::__forced_unwind&) {
    RestForEver();  // before what holds the lock unwinds
  }
}

absl::Status CallWithGil(const py::function& function) {
  const py::gil_scoped_acquire gil;
  const py::object complaint =
      py::reinterpret_steal<py::object>(CallUnlessFinalized(function.ptr()));
  if (!complaint) throw py::error_already_set();
  if (complaint.is_none()) return absl::OkStatus();
  return absl::AbortedError(complaint.cast<std::string>());
}

// `function` returns None, or the text of what went wrong: it keeps exceptions to itself.
std::function<absl::Status()> StatusOf(py::function function) {
  return [kept = Keep(std::move(function))]() -> absl::Status {
    try {
      return CallWithGil(*kept);
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("a function let an exception out: ", error.what()));
    } catch (const abi::__forced_unwind&) {
      RestForEver();
    }
  };
}

UserMemory MemoryOf(const at::Tensor& tensor, const std::string& argument) {
  if (!tensor.is_non_overlapping_and_dense()) {
    ThrowStatus(absl::InvalidArgumentError(absl::StrCat(argument, ": has gaps in memory")));
  }
  // Strided memory without gaps is flat memory in another order.
  const Tensor flat = ValueOrThrow(
      Flat(tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset()), argument));
  return {static_cast<std::byte*>(flat.data), flat.count, flat.dtype,
          std::make_shared<at::Tensor>(tensor)};
}

using Replicas = std::map<std::string, at::Tensor>;

UserOperation MakeOperation(std::string name, std::string algorithm, AlgorithmOptions options,
                            std::optional<py::function> function,
                            const std::optional<at::Tensor>& peer_weight, const Replicas& replicas,
                            std::shared_ptr<AveragingControl> control) {
  UserOperation operation;
  operation.name = std::move(name);
  operation.algorithm = std::move(algorithm);
  operation.options = std::move(options);
  if (function.has_value()) operation.function = StatusOf(*std::move(function));
  if (peer_weight.has_value()) operation.peer_weight = MemoryOf(*peer_weight, "peer_weight");
  for (const auto& [buffer, tensor] : replicas) {
    operation.replicas.emplace_back(buffer, MemoryOf(tensor, buffer));
  }
  operation.control = std::move(control);
  return operation;
}

// Name, dtype, elements, bucket.
using Described = std::tuple<std::string, at::ScalarType, int64_t, int32_t>;

std::shared_ptr<UserModel> MakeUserModel(std::shared_ptr<Backend> backend,
                                         const std::vector<int32_t>& ranks, std::string name,
                                         const std::vector<Described>& tensors,
                                         std::vector<UserOperations> operations, double timeout_s) {
  ModelOptions options;
  options.group = Group::Of(ranks);
  options.name = std::move(name);
  options.timeout = absl::Seconds(timeout_s);
  std::vector<TensorSpec> specs;
  for (const auto& [tensor, dtype, count, bucket] : tensors) {
    TensorSpec& spec = specs.emplace_back();
    spec.name = tensor;
    spec.dtype = ValueOrThrow(ToDType(dtype));
    spec.count = static_cast<uint64_t>(count);
    options.buckets.push_back(bucket);
  }
  std::shared_ptr<UserModel> model =
      ValueOrThrow(UserModel::Create(std::move(backend), std::move(options), std::move(specs),
                                     std::move(operations), std::make_shared<ProfiledRounds>()));
  UserModel* const made = model.get();
  return {made, [kept = std::move(model)](UserModel*) mutable { DropWithoutGil(kept); }};
}

at::Tensor TensorAt(const UserModel& model, int32_t slot, int64_t count) {
  const UserMemory memory = ValueOrThrow(model.MemoryOf(SlotId(slot)));
  const auto options = at::TensorOptions().dtype(ToScalarType(memory.dtype));
  if (count == 0) return at::empty({0}, options);
  return at::from_blob(
      memory.data, {count}, [owner = memory.owner](void*) mutable { DropWithoutGil(owner); },
      options);
}

void MarkReady(UserModel& model, int32_t slot, const std::optional<at::Tensor>& live) {
  UserMemory memory;
  if (live.has_value()) memory = MemoryOf(*live, "live");
  ThrowIfError(model.MarkReady(SlotId(slot), std::move(memory)));
}

bool PostStep(UserModel& model, EventKind kind, uint64_t optimizer, bool is_given,
              uint32_t given_count, bool is_synchronized) {
  TrainingEvent event;
  event.kind = kind;
  event.optimizer = optimizer;
  event.is_given = is_given;
  event.given_count = given_count;
  event.is_synchronized = is_synchronized;
  return model.Post(event);
}

void DefineControl(py::module_& module) {
  using C = AveragingControl;
  py::class_<C, std::shared_ptr<C>>(module, "AveragingControl")
      .def(py::init<>())
      .def(
          "lock_weight",
          [](C& self, double timeout_s) {
            ThrowIfError(self.LockWeights(Clock::Real().Now() + absl::Seconds(timeout_s)));
          },
          py::arg("timeout_s"), NoGil())
      .def("unlock_weight", [](C& self) { ThrowIfError(self.UnlockWeights()); })
      .def("held_by_this_thread", &C::held_by_this_thread)
      .def("abort", &C::Abort)
      .def("reset", &C::Reset)
      .def("get_status", &C::is_running);
}

}  // namespace

void DefineUserModel(py::module_& module) {
  using M = UserModel;
  DefineControl(module);
  py::class_<UserOperation>(module, "UserOperation")
      .def(py::init(&MakeOperation), py::arg("name"), py::arg("algorithm") = "",
           py::arg("options") = AlgorithmOptions(), py::arg("function") = py::none(),
           py::arg("peer_weight") = py::none(), py::arg("replicas") = Replicas(),
           py::arg("control") = std::shared_ptr<AveragingControl>());
  py::class_<M, std::shared_ptr<M>>(module, "UserModel")
      .def(py::init(&MakeUserModel), py::arg("backend"), py::arg("ranks"), py::arg("name"),
           py::arg("tensors"), py::arg("operations"), py::arg("timeout_s"), NoGil())
      .def("memory", &TensorAt, py::arg("slot"), py::arg("count"))
      .def("mark_ready", &MarkReady, py::arg("slot"), py::arg("live") = py::none(), NoGil())
      .def(
          "mark_unused", [](M& self, int32_t slot) { ThrowIfError(self.MarkUnused(SlotId(slot))); },
          py::arg("slot"), NoGil())
      .def(
          "finish_round", [](M& self) { ThrowIfError(self.FinishRound()); }, NoGil())
      .def("post", &PostStep, py::arg("event"), py::arg("optimizer"), py::arg("is_given"),
           py::arg("given_count"), py::arg("is_synchronized"))
      .def(
          "used_by_any", [](const M& self, int32_t slot) { return self.UsedByAny(SlotId(slot)); },
          py::arg("slot"))
      .def(
          "abort",
          [](M& self, const std::string& reason) { self.Abort(absl::AbortedError(reason)); },
          py::arg("reason"), NoGil())
      .def("statistics", &M::Statistics)
      .def("detach", &M::Detach, NoGil());
}

}  // namespace pelton::torch_bindings
