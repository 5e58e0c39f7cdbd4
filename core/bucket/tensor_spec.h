// What the planner knows of a tensor.
#ifndef PELTON_CORE_BUCKET_TENSOR_SPEC_H_
#define PELTON_CORE_BUCKET_TENSOR_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/memory/dtype.h"
#include "core/memory/stream.h"

namespace pelton {

// Threads: a value. Owns: its name.
struct TensorSpec {
  std::string name;  // unique in its plan, the same on all ranks
  DType dtype = DType::kFloat32;
  uint64_t count = 0;  // elements
  Device device = {};
  // Of a matrix [count / columns, columns], for algorithms that work on those; 0: it is none.
  uint64_t columns = 0;
  // How its elements follow each other, in words: part of the plan's text, because ranks that
  // differ would add up other elements. "": in the order of its dimensions.
  std::string layout = {};

  uint64_t size_bytes() const { return count * SizeOf(dtype); }
};

}  // namespace pelton

#endif  // PELTON_CORE_BUCKET_TENSOR_SPEC_H_
