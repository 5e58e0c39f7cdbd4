#include "torch_bindings/csrc/define_model.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/model.h"
#include "torch_bindings/csrc/averaging_model.h"
#include "torch_bindings/csrc/backward_watch.h"
#include "torch_bindings/csrc/model_state.h"
#include "torch_bindings/csrc/named_tensors.h"
#include "torch_bindings/csrc/shared_allocator.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/weight_model.h"
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
    tensors.emplace_back(tensor.key, tensor.tensor, tensor.begin, tensor.values);
  }
  return {state.rounds, state.order, std::move(tensors)};
}

ModelState FromPlain(const PlainState& plain) {
  ModelState state;
  state.rounds = std::get<0>(plain);
  state.order = std::get<1>(plain);
  for (const auto& [key, tensor, begin, values] : std::get<2>(plain)) {
    state.tensors.push_back({key, tensor, begin, values});
  }
  return state;
}

ModelOptions OptionsOf(const std::vector<int32_t>& ranks, std::string name, std::string algorithm,
                       AlgorithmOptions options, size_t bucket_size_bytes, double timeout_s) {
  ModelOptions model;
  model.group.generation = Generation(1);
  for (int32_t rank : ranks) model.group.members.emplace_back(rank);
  model.name = std::move(name);
  model.algorithm = std::move(algorithm);
  model.algorithm_options = std::move(options);
  model.bucket_size_bytes = bucket_size_bytes;
  model.timeout = absl::Seconds(timeout_s);
  return model;
}

std::shared_ptr<WrappedModel> WrapModel(std::shared_ptr<Backend> backend,
                                        const std::vector<int32_t>& ranks, std::string name,
                                        NamedTensors parameters, std::string algorithm,
                                        AlgorithmOptions options, size_t bucket_size_bytes,
                                        bool flatten, double timeout_s, const PlainMoments& moments,
                                        const PlainState& state) {
  ModelOptions model = OptionsOf(ranks, std::move(name), std::move(algorithm), std::move(options),
                                 bucket_size_bytes, timeout_s);
  // Without flattening every tensor is a segment of its own; with shared gradients the large ones
  // are.
  if (!flatten) model.standalone_bytes = 1;
  if (flatten && SharedAllocation::enabled())
    model.standalone_bytes = SharedAllocation::kSharedAllocationBytes;
  WrappedModel::Contents contents;
  contents.parameters = std::move(parameters);
  for (const auto& [tensor, beta] : moments) contents.moments.push_back({tensor, beta});
  contents.state = FromPlain(state);
  return ValueOrThrow(
      WrappedModel::Create(std::move(backend), std::move(model), std::move(contents)));
}

std::shared_ptr<WeightModel> WrapWeights(std::shared_ptr<Backend> backend,
                                         const std::vector<int32_t>& ranks, std::string name,
                                         const NamedTensors& parameters, std::string algorithm,
                                         AlgorithmOptions options, size_t bucket_size_bytes,
                                         double timeout_s, const PlainState& state) {
  ModelOptions model = OptionsOf(ranks, std::move(name), std::move(algorithm), std::move(options),
                                 bucket_size_bytes, timeout_s);
  return ValueOrThrow(
      WeightModel::Create(std::move(backend), std::move(model), parameters, FromPlain(state)));
}

std::unique_ptr<AveragingModel> WrapAveraged(std::shared_ptr<Backend> backend,
                                             const std::vector<int32_t>& ranks, std::string name,
                                             const NamedTensors& parameters, std::string algorithm,
                                             AlgorithmOptions options, size_t bucket_size_bytes,
                                             double timeout_s) {
  ModelOptions model = OptionsOf(ranks, std::move(name), std::move(algorithm), std::move(options),
                                 bucket_size_bytes, timeout_s);
  return ValueOrThrow(AveragingModel::Create(std::move(backend), std::move(model), parameters));
}

std::map<std::string, double> StatisticsOf(const WrappedModel& model) {
  const WrappedModel::Statistics statistics = model.statistics();
  return {{"rounds", static_cast<double>(statistics.rounds)},
          {"wait_seconds", statistics.wait_seconds},
          {"bytes", static_cast<double>(statistics.bytes)},
          {"sent_bytes", static_cast<double>(statistics.sent_bytes)},
          {"copied_bytes", static_cast<double>(statistics.copied_bytes)},
          {"plan_generation", static_cast<double>(statistics.plan_generation)}};
}

std::map<std::string, double> StatisticsOfWeights(const WeightModel& model) {
  const WeightModel::Statistics statistics = model.statistics();
  return {{"rounds", static_cast<double>(statistics.rounds)},
          {"wait_seconds", statistics.wait_seconds},
          {"bytes", static_cast<double>(statistics.bytes)},
          {"sent_bytes", static_cast<double>(statistics.sent_bytes)},
          {"copied_bytes", static_cast<double>(statistics.copied_bytes)},
          {"plan_generation", 1}};
}

std::map<std::string, double> StatisticsOfAveraged(const AveragingModel& model) {
  const auto rounds = static_cast<double>(model.rounds());
  const double bytes = rounds * static_cast<double>(model.size_bytes());
  return {{"rounds", rounds},
          {"wait_seconds", 0},
          {"bytes", bytes},
          {"sent_bytes", static_cast<double>(model.sent_bytes())},
          {"copied_bytes", 2 * bytes},
          {"plan_generation", 1}};
}

const char* NameOf(Subject subject) {
  switch (subject) {
    case Subject::kGradients:
      return "gradients";
    case Subject::kMomenta:
      return "momenta";
    case Subject::kWeightsInForward:
      return "weights_in_forward";
    case Subject::kWeightsAfterStep:
      return "weights_after_step";
    case Subject::kWeightsAnytime:
      return "weights_anytime";
  }
  return "unknown";
}

using PlainSchedule = std::tuple<std::string, uint64_t, uint64_t, uint64_t, bool>;

PlainSchedule ScheduleOf(const std::string& algorithm, const AlgorithmOptions& options) {
  const std::unique_ptr<Algorithm> made = ValueOrThrow(MakeAlgorithm(algorithm, options));
  const Schedule schedule = made->schedule();
  const bool makes_equal = made->RanksAgree() && schedule.kept == 0;
  return {NameOf(schedule.subject), schedule.first_step, schedule.interval, schedule.delay,
          makes_equal};
}

void DefineWrappedModel(py::module_& module) {
  using M = WrappedModel;
  py::class_<M, std::shared_ptr<M>>(module, "Model")
      .def(py::init(&WrapModel), py::arg("backend"), py::arg("ranks"), py::arg("name"),
           py::arg("parameters"), py::arg("algorithm"), py::arg("options"),
           py::arg("bucket_size_bytes"), py::arg("flatten"), py::arg("timeout_s"),
           py::arg("moments") = PlainMoments(), py::arg("state") = PlainState(), NoGil())
      .def("set_synchronized", &M::SetSynchronized, py::arg("enabled"))
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
          "finish_round", [](M& self) { ThrowIfError(self.FinishRound()); }, NoGil())
      .def(
          "set_betas",
          [](M& self, const std::vector<double>& betas) { ThrowIfError(self.SetBetas(betas)); },
          py::arg("betas"))
      .def("buckets", &M::Buckets)
      .def("state", [](const M& self) { return ToPlain(ValueOrThrow(self.State())); })
      .def("statistics", &StatisticsOf)
      .def("detach", &M::Detach, NoGil());
}

void DefineWeightModel(py::module_& module) {
  using M = WeightModel;
  py::class_<M, std::shared_ptr<M>>(module, "WeightModel")
      .def(py::init(&WrapWeights), py::arg("backend"), py::arg("ranks"), py::arg("name"),
           py::arg("parameters"), py::arg("algorithm"), py::arg("options"),
           py::arg("bucket_size_bytes"), py::arg("timeout_s"), py::arg("state") = PlainState(),
           NoGil())
      .def("check_parameters", &M::Changes)
      .def("check_round", [](const M& self) { ThrowIfError(self.failure()); })
      .def(
          "begin", [](M& self) { ThrowIfError(self.Begin()); }, NoGil())
      .def_property_readonly("is_open", &M::is_open)
      .def(
          "finish", [](M& self) { ThrowIfError(self.Finish()); }, NoGil())
      .def("buckets", &M::Buckets)
      .def(
          "state", [](M& self) { return ToPlain(ValueOrThrow(self.State())); }, NoGil())
      .def("statistics", &StatisticsOfWeights)
      .def("detach", &M::Detach, NoGil());
}

void DefineAveragingModel(py::module_& module) {
  using M = AveragingModel;
  py::class_<M>(module, "AveragingModel")
      .def(py::init(&WrapAveraged), py::arg("backend"), py::arg("ranks"), py::arg("name"),
           py::arg("parameters"), py::arg("algorithm"), py::arg("options"),
           py::arg("bucket_size_bytes"), py::arg("timeout_s"), NoGil())
      .def("check_parameters", &M::Changes)
      .def(
          "claim", [](M& self) { ThrowIfError(self.Claim()); }, NoGil())
      .def("release", &M::Release, NoGil())
      .def(
          "stop",
          [](M& self, double timeout_s) { ThrowIfError(self.Stop(absl::Seconds(timeout_s))); },
          py::arg("timeout_s"), NoGil())
      .def(
          "resume", [](M& self) { ThrowIfError(self.Resume()); }, NoGil())
      .def("buckets", &M::Buckets)
      .def("statistics", &StatisticsOfAveraged)
      .def(
          "detach", [](M& self, double timeout_s) { self.Detach(absl::Seconds(timeout_s)); },
          py::arg("timeout_s"), NoGil());
}

// A function of Python's that C++ calls, and lets go of, on threads without the GIL.
std::shared_ptr<py::object> Shared(py::object callable) {
  return {new py::object(std::move(callable)), [](py::object* owned) {
            py::gil_scoped_acquire gil;
            delete owned;
          }};
}

std::shared_ptr<BackwardWatch> Watch(const std::vector<at::Tensor>& parameters, py::object began,
                                     py::object ended) {
  BackwardWatch::Callbacks callbacks;
  callbacks.began = [callable = Shared(std::move(began))] {
    py::gil_scoped_acquire gil;
    (*callable)();
  };
  callbacks.ended = [callable = Shared(std::move(ended))](bool may_go_on) {
    py::gil_scoped_acquire gil;
    (*callable)(may_go_on);
  };
  return BackwardWatch::Create(parameters, std::move(callbacks));
}

void DefineBackwardWatch(py::module_& module) {
  using W = BackwardWatch;
  py::class_<W, std::shared_ptr<W>>(module, "BackwardWatch")
      .def(py::init(&Watch), py::arg("parameters"), py::arg("began"), py::arg("ended"))
      .def("watch_outputs", &W::WatchOutputs, py::arg("outputs"), NoGil())
      .def("settle", &W::Settle, NoGil())
      .def("detach", &W::Detach, NoGil());
}

}  // namespace

void DefineModel(py::module_& module) {
  DefineBackwardWatch(module);
  DefineWrappedModel(module);
  DefineWeightModel(module);
  DefineAveragingModel(module);
  module.def("schedule", &ScheduleOf, py::arg("algorithm"), py::arg("options"));
}

}  // namespace pelton::torch_bindings
