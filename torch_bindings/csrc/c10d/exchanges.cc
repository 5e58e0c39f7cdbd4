// The calls of a process group in which ranks send different things to different ranks.
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "comm/lane/job.h"
#include "comm/tags.h"
#include "core/memory/dtype.h"
#include "torch_bindings/csrc/c10d/process_group.h"
#include "torch_bindings/csrc/c10d/rules.h"
#include "torch_bindings/csrc/status_to_exception.h"

namespace pelton::torch_bindings {
namespace {

using Use = Call::Use;

int32_t TagOf(const Call& call, int tag) {
  if (tag < 0) call.Refuse(absl::StrCat("tag: ", tag, " is negative"));
  return tag;
}

Rank PeerOf(const Call& call, int peer, int rank, int world_size) {
  if (peer < 0 || peer >= world_size || peer == rank) {
    call.Refuse(absl::StrCat("peer: ", peer, " is not another rank in [0, ", world_size, ")"));
  }
  return Rank(peer);
}

// The pieces of `whole` along its first dimension; equal ones if `splits` is empty.
std::vector<Tensor> SplitOf(const Call& call, const char* argument, const at::Tensor& tensor,
                            Tensor whole, const std::vector<int64_t>& splits, int parts) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<int64_t> sizes = splits;
  if (sizes.empty()) {
    if (rows % parts != 0) {
      call.Refuse(absl::StrCat(argument, ": its first dimension, ", rows, ", is not divisible by ",
                               parts, " ranks"));
    }
    sizes.assign(static_cast<size_t>(parts), rows / parts);
  }
  CheckSize(call, absl::StrCat(argument, "_split_sizes"), sizes.size(), static_cast<size_t>(parts));
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (sum != rows) {
    call.Refuse(
        absl::StrCat(argument, "_split_sizes: their sum is ", sum, ", the first dimension ", rows));
  }
  const uint64_t row_count = rows == 0 ? 0 : whole.count / static_cast<uint64_t>(rows);
  std::vector<Tensor> pieces;
  std::byte* next = static_cast<std::byte*>(whole.data);
  for (int64_t size : sizes) {
    if (size < 0) call.Refuse(absl::StrCat(argument, "_split_sizes: ", size, " is negative"));
    const uint64_t count = static_cast<uint64_t>(size) * row_count;
    pieces.push_back({next, count, whole.dtype});
    next += count * SizeOf(whole.dtype);
  }
  return pieces;
}

}  // namespace

void ProcessGroup::AddExchange(Call& call, const std::vector<Tensor>& outputs,
                               const std::vector<Tensor>& inputs) const {
  const int size = getSize();
  const Tensor& own_input = inputs[static_cast<size_t>(getRank())];
  const Tensor& own_output = outputs[static_cast<size_t>(getRank())];
  if (own_input.count != own_output.count || own_input.dtype != own_output.dtype) {
    call.Refuse(absl::StrCat("rank ", getRank(), " sends itself ", own_input.count,
                             " elements and receives ", own_output.count));
  }
  if (own_input.count > 0) {
    std::memmove(own_output.data, own_input.data, own_input.count * SizeOf(own_input.dtype));
  }
  // Each starts with its next neighbour, so that no rank is everybody's first.
  for (int step = 1; step < size; ++step) {
    const int destination = (getRank() + step) % size;
    const int source = (getRank() - step + size) % size;
    call.Launch(SendOf(inputs[static_cast<size_t>(destination)], Rank(destination), kExchangeTag));
    call.Launch(RecvOf(outputs[static_cast<size_t>(source)], Rank(source), kExchangeTag));
  }
}

ProcessGroup::Work ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const ::c10d::AllToAllOptions& options) {
  Call call = Begin("all_to_all_single", Use::kMoved);
  const Tensor target = call.Writes(output, "output");
  const Tensor source = call.Reads(input, "input");
  AddExchange(call, SplitOf(call, "output", output, target, output_splits, getSize()),
              SplitOf(call, "input", input, source, input_splits, getSize()));
  return Submit(std::move(call), {::c10d::OpType::ALLTOALL_BASE, options.timeout, options.asyncOp},
                {input}, {{output}});
}

ProcessGroup::Work ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllToAllOptions& options) {
  Call call = Begin("all_to_all", Use::kMoved);
  const size_t size = static_cast<size_t>(getSize());
  CheckSize(call, "output_tensor_list", outputs.size(), size);
  CheckSize(call, "input_tensor_list", inputs.size(), size);
  std::vector<Tensor> targets, sources;
  for (size_t i = 0; i < size; ++i) {
    targets.push_back(call.Writes(outputs[i], absl::StrCat("output_tensor_list[", i, "]")));
  }
  for (size_t i = 0; i < size; ++i) {
    sources.push_back(call.Reads(inputs[i], absl::StrCat("input_tensor_list[", i, "]")));
  }
  AddExchange(call, targets, sources);
  return Submit(std::move(call), {::c10d::OpType::ALLTOALL, options.timeout, options.asyncOp},
                inputs, {outputs});
}

ProcessGroup::Work ProcessGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const ::c10d::GatherOptions& options) {
  Call call = Begin("gather", Use::kMoved);
  const at::Tensor& input = Only(call, "tensor", inputs);
  const Rank root = RootOf(call, options.rootRank, getSize());
  const ::c10d::OpType type = ::c10d::OpType::GATHER;
  if (root.value() != getRank()) {
    CheckSize(call, "gather_list on a rank that is not the root", outputs.size(), 0);
    call.Launch(SendOf(call.Reads(input, "tensor"), root, kExchangeTag));
    return Submit(std::move(call), {type, options.timeout, options.asyncOp}, inputs, {});
  }
  const Tensors& list = Only(call, "gather_list", outputs);
  CheckList(call, "gather_list", list, input);
  for (int i = 0; i < getSize(); ++i) {
    if (i == getRank()) continue;
    const at::Tensor& output = list[static_cast<size_t>(i)];
    call.Launch(
        RecvOf(call.Writes(output, absl::StrCat("gather_list[", i, "]")), Rank(i), kExchangeTag));
  }
  call.CopyAtEnd(list[static_cast<size_t>(getRank())], call.Keeps(input, "tensor"));
  return Submit(std::move(call), {type, options.timeout, options.asyncOp}, inputs,
                {list, /*is_nested=*/true});
}

ProcessGroup::Work ProcessGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const ::c10d::ScatterOptions& options) {
  Call call = Begin("scatter", Use::kMoved);
  const at::Tensor& output = Only(call, "tensor", outputs);
  const Rank root = RootOf(call, options.rootRank, getSize());
  if (root.value() != getRank()) {
    CheckSize(call, "scatter_list on a rank that is not the root", inputs.size(), 0);
    call.Launch(RecvOf(call.Writes(output, "tensor"), root, kExchangeTag));
  } else {
    const Tensors& list = Only(call, "scatter_list", inputs);
    CheckList(call, "scatter_list", list, output);
    for (int i = 0; i < getSize(); ++i) {
      const at::Tensor& input = list[static_cast<size_t>(i)];
      const std::string argument = absl::StrCat("scatter_list[", i, "]");
      if (i == getRank()) {
        call.CopyAtEnd(output, call.Keeps(input, argument));
      } else {
        call.Launch(SendOf(call.Reads(input, argument), Rank(i), kExchangeTag));
      }
    }
  }
  return Submit(std::move(call), {::c10d::OpType::SCATTER, options.timeout, options.asyncOp},
                inputs.empty() ? Tensors() : inputs.front(), {outputs});
}

ProcessGroup::Work ProcessGroup::send(Tensors& tensors, int destination, int tag) {
  Call call = Begin("send", Use::kMoved);
  const Tensor source = call.Reads(Only(call, "tensor", tensors), "tensor");
  call.SetSend();
  call.Launch(SendOf(source, PeerOf(call, destination, getRank(), getSize()), TagOf(call, tag)));
  return Submit(std::move(call), {::c10d::OpType::SEND}, tensors, {tensors});
}

ProcessGroup::Work ProcessGroup::recv(Tensors& tensors, int source, int tag) {
  Call call = Begin("recv", Use::kMoved);
  const Tensor target = call.Writes(Only(call, "tensor", tensors), "tensor");
  call.SetReceive(TagOf(call, tag), /*is_from_any=*/false);
  call.Launch(RecvOf(target, PeerOf(call, source, getRank(), getSize()), tag));
  return Submit(std::move(call), {::c10d::OpType::RECV}, tensors, {tensors, false, source, {}});
}

ProcessGroup::Work ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  Call call = Begin("recv", Use::kMoved);
  const Tensor target = call.Writes(Only(call, "tensor", tensors), "tensor");
  if (getSize() == 1) call.Refuse("source: there is no other rank to receive from");
  call.SetReceive(TagOf(call, tag), /*is_from_any=*/true);
  // Shared: the work and the job may each be the last.
  const auto source = std::make_shared<std::atomic<int>>(-1);
  call.Launch([=](Communicator& communicator) {
    return lane::RecvFromAny(communicator, target, tag, *source);
  });
  return Submit(std::move(call), {::c10d::OpType::RECVANYSOURCE}, tensors,
                {tensors, false, -1, source});
}

}  // namespace pelton::torch_bindings
