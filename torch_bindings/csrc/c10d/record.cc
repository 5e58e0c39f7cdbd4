#include "torch_bindings/csrc/c10d/record.h"

#include "absl/strings/str_cat.h"
#include "torch_bindings/csrc/profiler_range.h"

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

}  // namespace

absl::AnyInvocable<void()> BeginRecord(const std::string& backend, ::c10d::OpType type,
                                       const std::vector<at::Tensor>& inputs) {
  if (!IsProfiled()) return nullptr;  // no name is made for nobody
  return BeginProfilerRange(absl::StrCat(backend, ":", NameOf(type)), inputs);
}

}  // namespace pelton::torch_bindings
