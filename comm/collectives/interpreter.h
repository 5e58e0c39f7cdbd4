// For tests: runs the programs of all ranks over plain memory, in one thread, and refuses what a
// real run would only sometimes do wrong.
#ifndef PELTON_COMM_COLLECTIVES_INTERPRETER_H_
#define PELTON_COMM_COLLECTIVES_INTERPRETER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "comm/collectives/program.h"
#include "core/memory/dtype.h"

namespace pelton {

// One rank's program and tensors; `source` and `target` may be the same memory or overlap as
// operation.h allows. Units: elements. Threads: a value. Owns: nothing.
struct InterpretedRank {
  const Program* program = nullptr;
  std::byte* source = nullptr;
  uint64_t source_count = 0;
  std::byte* target = nullptr;
  uint64_t target_count = 0;
  double* factors = nullptr;
  uint64_t factor_count = 0;
};

// "" after a run, or what is wrong: a piece outside of its buffer, a message without its other end
// in the same strand and wave or of another length, memory that is received into while it is sent
// or received into otherwise, strands that touch each other's memory.
std::string Interpret(absl::Span<const InterpretedRank> ranks, DType dtype, ReduceOp op);

// The checks that need no memory: of all programs' pieces and messages. Works for any count.
std::string CheckPrograms(absl::Span<const InterpretedRank> ranks);

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_INTERPRETER_H_
