// The collectives of a process group that combine, and those that only copy everything to everyone.
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "torch_bindings/csrc/c10d/process_group.h"
#include "torch_bindings/csrc/c10d/rules.h"

namespace pelton::torch_bindings {

using Use = Call::Use;

ProcessGroup::Work ProcessGroup::broadcast(Tensors& tensors,
                                           const ::c10d::BroadcastOptions& options) {
  Call call = Begin("broadcast", Use::kMoved);
  const at::Tensor& tensor = Only(call, "tensors", tensors);
  const Rank root = RootOf(call, options.rootRank, getSize());
  const Tensor flat =
      root.value() == getRank() ? call.Reads(tensor, "tensor") : call.Writes(tensor, "tensor");
  call.Launch([=](Communicator& communicator) { return Broadcast(communicator, flat, root); });
  return Submit(std::move(call), {::c10d::OpType::BROADCAST, options.timeout, options.asyncOp},
                tensors, {tensors});
}

ProcessGroup::Work ProcessGroup::allreduce(Tensors& tensors,
                                           const ::c10d::AllreduceOptions& options) {
  const bool is_sparse = tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse();
  if (is_sparse) return AllReduceSparse(tensors, options);
  Call call = Begin("all_reduce", Use::kReduced);
  const ReduceOp op = OpOf(call, options.reduceOp);
  const Tensor flat = call.Updates(Only(call, "tensors", tensors), "tensor");
  call.Launch([=](Communicator& communicator) { return AllReduce(communicator, flat, flat, op); });
  return Submit(std::move(call), {::c10d::OpType::ALLREDUCE, options.timeout, options.asyncOp},
                tensors, {tensors});
}

ProcessGroup::Work ProcessGroup::allreduce_coalesced(
    Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) {
  Call call = Begin("all_reduce_coalesced", Use::kReduced);
  const ReduceOp op = OpOf(call, options.reduceOp);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor flat = call.Updates(tensors[i], absl::StrCat("tensors[", i, "]"));
    call.Launch(
        [=](Communicator& communicator) { return AllReduce(communicator, flat, flat, op); });
  }
  return Submit(std::move(call),
                {::c10d::OpType::ALLREDUCE_COALESCED, options.timeout, options.asyncOp}, tensors,
                {tensors});
}

ProcessGroup::Work ProcessGroup::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  Call call = Begin("reduce", Use::kReduced);
  const ReduceOp op = OpOf(call, options.reduceOp);
  const at::Tensor& tensor = Only(call, "tensors", tensors);
  const Rank root = RootOf(call, options.rootRank, getSize());
  const Tensor flat =
      root.value() == getRank() ? call.Updates(tensor, "tensor") : call.Reads(tensor, "tensor");
  call.Launch(
      [=](Communicator& communicator) { return Reduce(communicator, flat, flat, op, root); });
  return Submit(std::move(call), {::c10d::OpType::REDUCE, options.timeout, options.asyncOp},
                tensors, {tensors});
}

void ProcessGroup::AddAllGatherBase(Call& call, const at::Tensor& output,
                                    const at::Tensor& input) const {
  CheckWhole(call, {"output", output}, {"input", input}, getSize());
  const Tensor target = call.Writes(output, "output");
  const Tensor source = call.Reads(input, "input");
  call.Launch([=](Communicator& communicator) { return AllGather(communicator, source, target); });
}

// Lists of unequal tensors are broadcast one by one; all ranks see the same lists.
void ProcessGroup::AddAllGather(Call& call, const Tensors& outputs, const at::Tensor& input) const {
  CheckList(call, "tensor_list", outputs, input);
  const size_t rank = static_cast<size_t>(getRank());
  if (AreEqual(outputs)) {
    const at::Tensor gathered = call.Scratch(input.numel() * getSize(), input);
    AddAllGatherBase(call, gathered, input);
    for (int64_t i = 0; i < getSize(); ++i) {
      call.CopyAtEnd(outputs[static_cast<size_t>(i)],
                     gathered.narrow(0, i * input.numel(), input.numel()));
    }
    return;
  }
  std::vector<Tensor> flats(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i != rank) flats[i] = call.Writes(outputs[i], "tensor_list");
  }
  flats[rank] = call.Reads(input, "tensor");
  for (size_t i = 0; i < outputs.size(); ++i) {
    call.Launch([flat = flats[i], root = Rank(static_cast<int32_t>(i))](
                    Communicator& communicator) { return Broadcast(communicator, flat, root); });
  }
  call.CopyAtEnd(outputs[rank], call.Keeps(input, "tensor"));
}

ProcessGroup::Work ProcessGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const ::c10d::AllgatherOptions& options) {
  Call call = Begin("all_gather", Use::kMoved);
  const Tensors& list = Only(call, "tensor_list", outputs);
  AddAllGather(call, list, Only(call, "tensor", inputs));
  return Submit(std::move(call), {::c10d::OpType::ALLGATHER, options.timeout, options.asyncOp},
                inputs, {list, /*is_nested=*/true});
}

ProcessGroup::Work ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const ::c10d::AllgatherOptions& options) {
  Call call = Begin("all_gather_into_tensor", Use::kMoved);
  AddAllGatherBase(call, output, input);
  return Submit(std::move(call),
                {::c10d::OpType::_ALLGATHER_BASE, options.timeout, options.asyncOp}, {input},
                {{output}});
}

ProcessGroup::Work ProcessGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                     const ::c10d::AllgatherOptions& options) {
  Call call = Begin("all_gather_coalesced", Use::kMoved);
  CheckSize(call, "output_tensor_lists", outputs.size(), static_cast<size_t>(getSize()));
  Tensors results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_ranks;
    for (const Tensors& list : outputs) {
      CheckSize(call, "output_tensor_lists of one rank", list.size(), inputs.size());
      of_ranks.push_back(list[i]);
    }
    AddAllGather(call, of_ranks, inputs[i]);
    results.insert(results.end(), of_ranks.begin(), of_ranks.end());
  }
  return Submit(std::move(call),
                {::c10d::OpType::ALLGATHER_COALESCED, options.timeout, options.asyncOp}, inputs,
                {std::move(results)});
}

ProcessGroup::Work ProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) {
  Call call = Begin("all_gather_into_tensor_coalesced", Use::kMoved);
  CheckSize(call, "outputs", outputs.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) AddAllGatherBase(call, outputs[i], inputs[i]);
  return Submit(std::move(call), {::c10d::OpType::COALESCED, options.timeout, options.asyncOp},
                inputs, {outputs});
}

void ProcessGroup::AddReduceScatterBase(Call& call, const at::Tensor& output,
                                        const at::Tensor& input, ReduceOp op) const {
  CheckWhole(call, {"input", input}, {"output", output}, getSize());
  const Tensor target = call.Writes(output, "output");
  const Tensor source = call.Reads(input, "input");
  call.Launch(
      [=](Communicator& communicator) { return ReduceScatter(communicator, source, target, op); });
}

// Lists of unequal tensors are reduced one by one, each to its rank.
void ProcessGroup::AddReduceScatter(Call& call, const at::Tensor& output, const Tensors& inputs,
                                    ReduceOp op) const {
  CheckList(call, "input_list", inputs, output);
  if (AreEqual(inputs)) {
    const at::Tensor whole = call.Scratch(output.numel() * getSize(), output);
    for (int64_t i = 0; i < getSize(); ++i) {
      const at::Tensor& part = inputs[static_cast<size_t>(i)];
      whole.narrow(0, i * output.numel(), output.numel()).view(part.sizes()).copy_(part.detach());
    }
    return AddReduceScatterBase(call, output, whole, op);
  }
  const Tensor result = call.Writes(output, "output");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Rank root(static_cast<int32_t>(i));
    const Tensor source = call.Reads(inputs[i], "input_list");
    const Tensor target = root.value() == getRank() ? result : source;
    call.Launch(
        [=](Communicator& communicator) { return Reduce(communicator, source, target, op, root); });
  }
}

ProcessGroup::Work ProcessGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const ::c10d::ReduceScatterOptions& options) {
  Call call = Begin("reduce_scatter", Use::kReduced);
  AddReduceScatter(call, Only(call, "output", outputs), Only(call, "input_list", inputs),
                   OpOf(call, options.reduceOp));
  return Submit(std::move(call), {::c10d::OpType::REDUCE_SCATTER, options.timeout, options.asyncOp},
                inputs.front(), {outputs});
}

ProcessGroup::Work ProcessGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const ::c10d::ReduceScatterOptions& options) {
  Call call = Begin("reduce_scatter_tensor", Use::kReduced);
  AddReduceScatterBase(call, output, input, OpOf(call, options.reduceOp));
  return Submit(std::move(call),
                {::c10d::OpType::_REDUCE_SCATTER_BASE, options.timeout, options.asyncOp}, {input},
                {{output}});
}

ProcessGroup::Work ProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& options) {
  Call call = Begin("reduce_scatter_tensor_coalesced", Use::kReduced);
  CheckSize(call, "outputs", outputs.size(), inputs.size());
  const ReduceOp op = OpOf(call, options.reduceOp);
  for (size_t i = 0; i < inputs.size(); ++i) AddReduceScatterBase(call, outputs[i], inputs[i], op);
  return Submit(std::move(call), {::c10d::OpType::COALESCED, options.timeout, options.asyncOp},
                inputs, {outputs});
}

}  // namespace pelton::torch_bindings
