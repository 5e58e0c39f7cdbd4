// What Python sees, by what it is about: names and conversions only; see pelton/_C.pyi for the
// contracts. Each is called once, when the module is made.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEFINE_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEFINE_H_

#include <torch/csrc/utils/pybind.h>  // not pybind11.h alone: a tensor has its caster here

#include <cstdint>
#include <utility>

#include "core/base/ids.h"
#include "core/pipeline/weight_table.h"

// In Python a neighbour is a tuple of its rank and its weight.
template <>
class pybind11::detail::type_caster<pelton::Neighbor> {
 public:
  PYBIND11_TYPE_CASTER(pelton::Neighbor, const_name("tuple[int, float]"));

  bool load(handle source, bool converts) {
    make_caster<std::pair<int32_t, double>> pair;
    if (!pair.load(source, converts)) return false;
    const auto [rank, weight] = cast_op<std::pair<int32_t, double>>(pair);
    value = {pelton::Rank(rank), weight};
    return true;
  }
};

namespace pelton::torch_bindings {

// The class Communicator.
void DefineCommunicator(pybind11::module_& module);
// Copies beside training.
void DefineCopies(pybind11::module_& module);
// The class Graphs and the functions that make some.
void DefineGraphs(pybind11::module_& module);
// The class Model and its like.
void DefineModel(pybind11::module_& module);
// The classes Queue, Handle and WeightTable: operations that are waited for later.
void DefineQueue(pybind11::module_& module);
// The classes UserModel, UserOperation and AveragingControl: buckets that a user has chosen.
void DefineUserModel(pybind11::module_& module);
// The classes Windows and Window.
void DefineWindows(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEFINE_H_
