#include "torch_bindings/csrc/c10d/record.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pelton::torch_bindings {
namespace {

const char* NameOf(::c10d::OpType type) {
  using Type = ::c10d::OpType;
  switch (type) {
    case Type::BROADCAST:
      return "broadcast";
    case Type::ALLREDUCE:
    case Type::ALLREDUCE_COALESCED:
      return "all_reduce";
    case Type::_ALLREDUCE_SPARSE:
      return "sparse_all_reduce";
    case Type::REDUCE:
      return "reduce";
    case Type::ALLGATHER:
    case Type::_ALLGATHER_BASE:
    case Type::ALLGATHER_COALESCED:
      return "all_gather";
    case Type::GATHER:
      return "gather";
    case Type::SCATTER:
      return "scatter";
    case Type::REDUCE_SCATTER:
    case Type::_REDUCE_SCATTER_BASE:
      return "reduce_scatter";
    case Type::ALLTOALL:
    case Type::ALLTOALL_BASE:
      return "all_to_all";
    case Type::SEND:
      return "send";
    case Type::RECV:
      return "recv";
    case Type::RECVANYSOURCE:
      return "recvAnySource";
    case Type::BARRIER:
      return "barrier";
    default:
      return "coalesced";
  }
}

// Threads: one at a time. Owns: the name, which the event borrows.
struct Record {
  explicit Record(at::StepCallbacks callbacks) : function(std::move(callbacks)) {}

  std::string name;
  at::RecordFunction function;
};

}  // namespace

absl::AnyInvocable<void()> BeginRecord(const std::string& backend, ::c10d::OpType type,
                                       const std::vector<at::Tensor>& inputs) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks.has_value()) return nullptr;
  auto record = std::make_unique<Record>(*std::move(callbacks));
  record->name = absl::StrCat(backend, ":", NameOf(type));
  record->function._setAsync();  // another thread may end it
  const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  record->function.before(std::string_view(record->name), &values);
  return [record = std::move(record), state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard guard(state);
    record->function.end();
  };
}

}  // namespace pelton::torch_bindings
