#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/model.h"
#include "backend/model_port.h"
#include "core/round/model_state.h"
#include "core/round/schedule.h"
#include "core/round/trigger.h"
#include "core/tuning/plan_tuner.h"
#include "torch_bindings/csrc/backward_watch.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/shared_allocator.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/tensors.h"
#include "torch_bindings/csrc/wrapped_model.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

// A ModelState as Python sees it: rounds, order, and (key, tensor, begin, values) of each tensor.
using PlainTensorState = std::tuple<std::string, std::string, int64_t, at::Tensor>;
using PlainState = std::tuple<uint64_t, std::vector<std::string>, std::vector<PlainTensorState>>;
using PlainMoments = std::vector<std::pair<at::Tensor, double>>;

PlainState ToPlain(const ModelState& state) {
  std::vector<PlainTensorState> tensors;
  for (const TensorState& tensor : state.tensors) {
    const auto count = static_cast<int64_t>(tensor.bytes.size() / SizeOf(tensor.dtype));
    at::Tensor values = at::empty({count}, at::TensorOptions().dtype(ToScalarType(tensor.dtype)));
    std::memcpy(values.data_ptr(), tensor.bytes.data(), tensor.bytes.size());
    tensors.emplace_back(tensor.key, tensor.tensor, static_cast<int64_t>(tensor.begin),
                         std::move(values));
  }
  return {state.rounds, state.order, std::move(tensors)};
}

ModelState FromPlain(const PlainState& plain) {
  ModelState state;
  state.rounds = std::get<0>(plain);
  state.order = std::get<1>(plain);
  for (const auto& [key, tensor, begin, values] : std::get<2>(plain)) {
    if (!values.is_contiguous() || !values.device().is_cpu() || begin < 0) {
      ThrowStatus(absl::InvalidArgumentError(absl::StrCat(
          "state: ", key, " of '", tensor, "' is not a contiguous tensor on the CPU")));
    }
    const auto* const data = static_cast<const std::byte*>(values.data_ptr());
    state.tensors.push_back({.key = key,
                             .tensor = tensor,
                             .begin = static_cast<uint64_t>(begin),
                             .dtype = ValueOrThrow(ToDType(values.scalar_type())),
                             .bytes = {data, data + values.nbytes()}});
  }
  return state;
}

ModelOptions OptionsOf(const std::vector<int32_t>& ranks, std::string name, std::string algorithm,
                       AlgorithmOptions options, size_t bucket_size_bytes, double timeout_s) {
  ModelOptions model;
  model.group = Group::Of(ranks);
  model.name = std::move(name);
  model.algorithm = std::move(algorithm);
  model.algorithm_options = std::move(options);
  model.bucket_size_bytes = bucket_size_bytes;
  model.timeout = absl::Seconds(timeout_s);
  return model;
}

// Whether `ranks`, or all of the job if none are named, are several and share a host.
bool ShareHost(const Backend& backend, const std::vector<int32_t>& ranks) {
  const HostMap& hosts = backend.hosts();
  if (ranks.empty()) return hosts.host_of.size() > 1 && hosts.is_one_host();
  const std::vector<Rank> members(ranks.begin(), ranks.end());
  return members.size() > 1 && hosts.AreWith(backend.rank(), members);
}

std::shared_ptr<WrappedModel> WrapModel(std::shared_ptr<Backend> backend,
                                        const std::vector<int32_t>& ranks, std::string name,
                                        NamedTensors parameters, std::string algorithm,
                                        AlgorithmOptions options, size_t bucket_size_bytes,
                                        bool flatten, double timeout_s, const PlainMoments& moments,
                                        bool on_call, uint64_t steps, const PlainState& state,
                                        const std::vector<PlainState>& states,
                                        std::string schedules) {
  PortOptions port;
  port.model = OptionsOf(ranks, std::move(name), std::move(algorithm), std::move(options),
                         bucket_size_bytes, timeout_s);
  // Without flattening every tensor is a segment of its own; with shared gradients the large ones
  // are.
  if (!flatten) port.model.standalone_bytes = 1;
  const bool is_on_cpu = !parameters.empty() && parameters.front().second.is_cpu();
  if (flatten && is_on_cpu && SharedAllocation::Serves(ShareHost(*backend, ranks)))
    port.model.standalone_bytes = SharedAllocation::kSharedAllocationBytes;
  port.model.schedules = std::move(schedules);
  port.on_call = on_call;
  port.steps = steps;
  port.state = FromPlain(state);
  for (const PlainState& other : states) port.states.push_back(FromPlain(other));
  WrappedModel::Contents contents;
  contents.parameters = std::move(parameters);
  for (const auto& [tensor, beta] : moments) contents.moments.push_back({tensor, beta});
  return ValueOrThrow(WrappedModel::Create(std::move(backend), std::move(port), contents));
}

std::map<std::string, double> ToPlain(const ModelPort::Statistics& statistics) {
  return {{"rounds", static_cast<double>(statistics.rounds)},
          {"wait_seconds", statistics.wait_seconds},
          {"bytes", static_cast<double>(statistics.bytes)},
          {"sent_bytes", static_cast<double>(statistics.sent_bytes)},
          {"copied_bytes", static_cast<double>(statistics.copied_bytes)},
          {"plan_generation", static_cast<double>(statistics.plan_generation)},
          {"bucket_size_bytes", static_cast<double>(statistics.bucket_size_bytes)}};
}

std::pair<std::string, std::string> ScheduleOf(const std::string& algorithm,
                                               const AlgorithmOptions& options) {
  const Schedule schedule = ValueOrThrow(MakeAlgorithm(algorithm, options))->schedule();
  return {std::string(NameOf(schedule.source)), std::string(NameOf(schedule.trigger))};
}

void DefineEvents(py::module_& module) {
  py::enum_<EventKind>(module, "Event")
      .value("FORWARD_BEGINS", EventKind::kForwardBegins)
      .value("EVALUATION_BEGINS", EventKind::kEvaluationBegins)
      .value("BACKWARD_BEGINS", EventKind::kBackwardBegins)
      .value("BACKWARD_ENDS", EventKind::kBackwardEnds)
      .value("BEFORE_STEP", EventKind::kBeforeStep)
      .value("AFTER_STEP", EventKind::kAfterStep)
      .value("STEP_SKIPPED", EventKind::kStepSkipped)
      .value("CALL", EventKind::kCall);
}

bool Post(WrappedModel& model, EventKind kind, uint64_t optimizer, bool is_given,
          uint32_t given_count, bool may_go_on) {
  TrainingEvent event;
  event.kind = kind;
  event.optimizer = optimizer;
  event.is_given = is_given;
  event.given_count = given_count;
  event.may_go_on = may_go_on;
  return ValueOrThrow(model.Post(event));
}

// Long because it is the list of what Python sees of a model.
void DefineWrappedModel(py::module_& module) {
  using M = WrappedModel;
  py::class_<M, std::shared_ptr<M>>(module, "Model")
      .def(py::init(&WrapModel), py::arg("backend"), py::arg("ranks"), py::arg("name"),
           py::arg("parameters"), py::arg("algorithm"), py::arg("options"),
           py::arg("bucket_size_bytes"), py::arg("flatten"), py::arg("timeout_s"),
           py::arg("moments") = PlainMoments(), py::arg("on_call") = false, py::arg("steps") = 0,
           py::arg("state") = PlainState(), py::arg("states") = std::vector<PlainState>(),
           py::arg("schedules") = "", NoGil())
      .def("post", &Post, py::arg("event"), py::arg("optimizer") = 0, py::arg("is_given") = true,
           py::arg("given_count") = 1, py::arg("may_go_on") = false, NoGil())
      .def("set_synchronized", &M::SetSynchronized, py::arg("enabled"))
      .def("take_over", &M::TakeOver, py::arg("before"))
      .def("local_gradients", &M::LocalGradients)
      .def("mark_local", &M::MarkLocal, py::arg("names"))
      .def(
          "check_local_gradients",
          [](const M& self, const std::vector<std::string>& names) {
            ThrowIfError(self.CheckLocalGradients(names));
          },
          py::arg("names"))
      .def_property_readonly("sums", &M::sums)
      .def("check_parameters", &M::Changes)
      .def(
          "check_round", [](M& self) { ThrowIfError(self.CheckRound()); }, NoGil())
      .def(
          "watch_outputs",
          [](M& self, const std::vector<at::Tensor>& outputs, bool is_training) {
            self.WatchOutputs(outputs, is_training ? RoundMode::kTraining : RoundMode::kEvaluation);
          },
          py::arg("outputs"), py::arg("is_training"), NoGil())
      .def(
          "finish", [](M& self) { ThrowIfError(self.FinishRound()); }, NoGil())
      .def(
          "stop",
          [](M& self, double timeout_s) {
            ThrowIfError(self.port().Stop(absl::Seconds(timeout_s)));
          },
          py::arg("timeout_s"), NoGil())
      .def(
          "resume", [](M& self) { ThrowIfError(self.port().Resume()); }, NoGil())
      .def("stay_stopped", [](M& self) { self.port().StayStopped(); })
      .def_property_readonly("is_averaging",
                             [](const M& self) {
                               return self.port().schedule().trigger == TriggerKind::kTimer &&
                                      self.port().trigger().is_wanted();
                             })
      .def_property_readonly("may_differ",
                             [](const M& self) { return self.port().trigger().may_differ(); })
      .def_property_readonly("steps", [](const M& self) { return self.port().trigger().steps(); })
      .def_property_readonly("interval",
                             [](const M& self) { return self.port().schedule().interval; })
      .def_property_readonly(
          "tensors_are_equal",
          [](const M& self) { return self.port().trigger().tensors_are_equal(); })
      .def_property_readonly("needs_backward",
                             [](const M& self) { return self.port().trigger().needs_backward(); })
      .def(
          "set_betas",
          [](M& self, const std::vector<double>& betas) { ThrowIfError(self.SetBetas(betas)); },
          py::arg("betas"))
      .def(
          "tune", [](M& self, const std::string& csv_path) { ThrowIfError(self.Tune(csv_path)); },
          py::arg("csv_path"), NoGil())
      .def("end_tuning", &M::EndTuning, NoGil())
      .def_property_readonly("is_tuning", &M::is_tuning)
      .def("buckets", &M::Buckets)
      .def("flat_buckets", &M::FlatBuckets, NoGil())
      .def(
          "state", [](M& self) { return ToPlain(ValueOrThrow(self.State())); }, NoGil())
      .def("statistics", [](const M& self) { return ToPlain(self.statistics()); })
      .def(
          "detach", [](M& self, double timeout_s) { self.Detach(absl::Seconds(timeout_s)); },
          py::arg("timeout_s") = 0, NoGil());
}

// A function of Python's that C++ calls, and lets go of, on threads without the GIL.
auto Calling(py::object callable) {
  const std::shared_ptr<py::object> shared(new py::object(std::move(callable)),
                                           [](py::object* owned) {
                                             py::gil_scoped_acquire gil;
                                             delete owned;
                                           });
  return [shared](auto... arguments) {
    py::gil_scoped_acquire gil;
    (*shared)(arguments...);
  };
}

std::shared_ptr<BackwardWatch> Watch(const std::vector<at::Tensor>& parameters, py::object began,
                                     py::object ends, py::object ended) {
  BackwardWatch::Callbacks callbacks;
  callbacks.began = Calling(std::move(began));
  callbacks.ends = Calling(std::move(ends));
  callbacks.ended = Calling(std::move(ended));
  return BackwardWatch::Create(parameters, std::move(callbacks));
}

void DefineBackwardWatch(py::module_& module) {
  using W = BackwardWatch;
  py::class_<W, std::shared_ptr<W>>(module, "BackwardWatch")
      .def(py::init(&Watch), py::arg("parameters"), py::arg("began"), py::arg("ends"),
           py::arg("ended"))
      .def("watch_outputs", &W::WatchOutputs, py::arg("outputs"), NoGil())
      .def("settle", &W::Settle, NoGil())
      .def("detach", &W::Detach, NoGil());
}

PlanTuner MakeTuner(size_t candidates, size_t current, int turn, int skipped, int most) {
  if (candidates < 1 || current >= candidates || skipped < 0 || turn <= skipped) {
    ThrowStatus(absl::InvalidArgumentError(absl::StrCat("PlanTuner: candidates=", candidates,
                                                        ", current=", current, ", turn=", turn,
                                                        ", skipped=", skipped)));
  }
  PlanTunerOptions options;
  options.recorded = 1;
  options.turn = turn;
  options.skipped = skipped;
  options.challengers = static_cast<int>(candidates) - 1;
  options.most = most;
  return {candidates, current, options};
}

std::pair<size_t, int> NextTurn(PlanTuner& tuner, const std::vector<double>& steps_s,
                                const std::vector<double>& predicted_s) {
  const PlanTuner::Turn turn = tuner.turn();
  if (turn.rounds == 0 || static_cast<int>(steps_s.size()) != turn.rounds) {
    ThrowStatus(absl::InvalidArgumentError(
        absl::StrCat("steps_s: ", steps_s.size(), " of a turn of ", turn.rounds, " rounds")));
  }
  const PlanTuner::Turn next = tuner.Next(steps_s, predicted_s);
  return {next.plan, next.rounds};
}

void DefinePlanTuner(py::module_& module) {
  py::class_<PlanVerdict>(module, "PlanVerdict")
      .def_readonly("current", &PlanVerdict::current)
      .def_readonly("challenger", &PlanVerdict::challenger)
      .def_readonly("current_s", &PlanVerdict::current_s)
      .def_readonly("challenger_s", &PlanVerdict::challenger_s)
      .def_readonly("gain_s", &PlanVerdict::gain_s)
      .def_readonly("noise_s", &PlanVerdict::noise_s)
      .def_readonly("is_final", &PlanVerdict::is_final)
      .def_readonly("is_taken", &PlanVerdict::is_taken);
  py::class_<PlanTuner>(module, "PlanTuner")
      .def(py::init(&MakeTuner), py::arg("candidates"), py::arg("current"), py::arg("turn"),
           py::arg("skipped"), py::arg("most"))
      .def_property_readonly(
          "turn",
          [](const PlanTuner& self) { return std::pair(self.turn().plan, self.turn().rounds); })
      .def("next", &NextTurn, py::arg("steps_s"), py::arg("predicted_s"))
      .def_property_readonly("verdicts", &PlanTuner::verdicts);
}

}  // namespace

void DefineModel(py::module_& module) {
  DefineBackwardWatch(module);
  DefinePlanTuner(module);
  DefineEvents(module);
  DefineWrappedModel(module);
  module.def("schedule", &ScheduleOf, py::arg("algorithm"), py::arg("options"));
}

}  // namespace pelton::torch_bindings
