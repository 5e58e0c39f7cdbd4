// A recipe turns a collective into every rank's program. One file each, registered by name.
#ifndef PELTON_COMM_COLLECTIVES_RECIPE_H_
#define PELTON_COMM_COLLECTIVES_RECIPE_H_

#include <cstdint>
#include <utility>

#include "comm/collectives/program.h"
#include "core/memory/dtype.h"
#include "core/pipeline/operation.h"
#include "core/registry/registry.h"

namespace pelton {

// What a program depends on. `count` is the operation's (operation.h says of what).
// Threads: a value. Owns: nothing.
struct ProgramShape {
  OperationKind kind = OperationKind::kAllReduce;
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t root = 0;  // where the kind has one
  uint64_t count = 0;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;

  friend bool operator==(const ProgramShape&, const ProgramShape&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const ProgramShape& shape) {
    return H::combine(std::move(state), shape.kind, shape.rank, shape.world_size, shape.root,
                      shape.count, shape.dtype, shape.reduce_op);
  }
};

// Fields that the kind does not look at are those of a shape that has none, so that alike
// operations have one program.
inline ProgramShape ShapeOf(const Operation& operation, Rank rank, WorldSize world_size) {
  return {.kind = operation.kind,
          .rank = rank.value(),
          .world_size = world_size.value(),
          .root = HasRoot(operation.kind) ? operation.peer : 0,
          .count = operation.count,
          .dtype = operation.dtype,
          .reduce_op = Reduces(operation.kind) ? operation.reduce_op : ReduceOp::kSum};
}

// Threads: a value; the functions are pure. Owns: nothing.
struct RecipeTraits {
  // The order in which elements are added: rank order is bitwise the one-process sum (SUM-1b); any
  // recipe gives the same bits on all ranks (SUM-1a).
  bool sums_in_rank_order = false;
  // Whether a 16-bit sum is rounded once, at the end, as SUM-1 asks; others are refused for 16
  // bits.
  bool rounds_once = false;
  bool (*supports)(const ProgramShape& shape) = nullptr;
  Program (*make)(const ProgramShape& shape) = nullptr;
};

using RecipeRegistry = Registry<RecipeTraits>;

}  // namespace pelton

// One line per recipe; the summary says its steps and the bytes that a rank sends.
#define REGISTER_RECIPE(name, summary, ...)                            \
  static const bool pelton_registered_recipe_##name [[maybe_unused]] = \
      ::pelton::RecipeRegistry::Get().Register(#name, summary, __VA_ARGS__)

#endif  // PELTON_COMM_COLLECTIVES_RECIPE_H_
