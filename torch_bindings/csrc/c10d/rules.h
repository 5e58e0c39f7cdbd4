// What the calls of a process group check before anything is sent.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_RULES_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_RULES_H_

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "comm/collectives.h"
#include "torch_bindings/csrc/c10d/call.h"

namespace pelton::torch_bindings {

// All of these: Errors (thrown): InvalidArgument: names the operation, the argument and its value.

// Errors: Unsupported: PREMUL_SUM, by its name.
ReduceOp OpOf(const Call& call, const ::c10d::ReduceOp& op);
Rank RootOf(const Call& call, int64_t root, int world_size);
void CheckSize(const Call& call, const std::string& argument, size_t size, size_t expected);

struct Named {
  const char* name;
  const at::Tensor& tensor;
};
// Same type, and `whole` has `parts` times the elements of `part`.
void CheckWhole(const Call& call, const Named& whole, const Named& part, int parts);

// Whether all have the same number of elements.
bool AreEqual(const std::vector<at::Tensor>& tensors);

// The list's one entry: PyTorch's interface is made for several devices per process, which are
// gone.
template <typename T>
const T& Only(const Call& call, const std::string& argument, const std::vector<T>& list) {
  CheckSize(call, argument, list.size(), 1);
  return list.front();
}

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_RULES_H_
