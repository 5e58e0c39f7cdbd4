#include "torch_bindings/csrc/python_queue.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "comm/shape_mark.h"
#include "comm/tags.h"
#include "core/base/fork.h"
#include "core/bucket/round_mode.h"
#include "core/memory/region.h"
#include "core/memory/stream.h"
#include "torch_bindings/csrc/devices.h"
#include "torch_bindings/csrc/neighbor_gather.h"
#include "torch_bindings/csrc/shape_message.h"
#include "torch_bindings/csrc/signals.h"
#include "torch_bindings/csrc/status_to_exception.h"

namespace pelton::torch_bindings {
namespace {

using lane::Job;
using Target = PythonQueue::Target;

// Source: FNV-1a.
uint64_t HashOf(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

uint64_t HashOf(const PythonQueue::Run& run) {
  return run.name.has_value() ? HashOf(*run.name) : 0;
}

BucketId BucketOf(const PythonQueue::Run& run) {
  return run.name.has_value() ? BucketId(NumberOf(*run.name)) : kNoBucket;
}

// Operations without a name have tag 0, and those with one a tag of the lower half. Names are many
// more than tags: two that share a tag differ in the bucket, which is an error where they meet.
constexpr int32_t kHalfOfTags = kNeighborTags / 2;
// Of the shapes of a GPU's tensors, whose order counts, named or not.
constexpr int32_t kShapesOnGpuTag = kHalfOfTags;

int32_t TagOf(const PythonQueue::Run& run) {
  if (!run.name.has_value()) return 0;
  return 1 + static_cast<int32_t>(HashOf(*run.name) % (kHalfOfTags - 1));
}

// Positive: see comm/shape_mark.h. Source: FNV-1a, of words.
int32_t ShapeMarkOf(const at::Tensor& tensor) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const int64_t size : tensor.sizes()) {
    hash = (hash ^ static_cast<uint64_t>(size)) * 0x100000001B3u;
    hash ^= hash >> 32;
  }
  return static_cast<int32_t>(hash & 0x7FFFFFFF) | 1;
}

EdgeLabel LabelOf(const PythonQueue::Run& run, const at::Tensor& tensor) {
  return {.tag = TagOf(run), .bucket = BucketOf(run), .shape_mark = ShapeMarkOf(tensor)};
}

at::Tensor EmptyLike(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false));
}

// `target`, or a new tensor for the result of a call with `tensor`. Errors (thrown):
// InvalidArgument: it is unlike it.
at::Tensor ResultOf(const Call& call, const at::Tensor& tensor, const Target& target) {
  if (!target.has_value()) return EmptyLike(tensor);
  if (target->sizes() != tensor.sizes() || target->scalar_type() != tensor.scalar_type() ||
      target->device() != tensor.device()) {
    call.Refuse("target: has another shape, type or device than the tensor");
  }
  return *target;
}

struct Collective {
  OperationKind kind;
  Tensor source;
  Tensor target;
  uint64_t count;
  BucketId bucket = kNoBucket;
  int32_t root = kNoPeer;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t shape_mark = kNoShapeMark;
};

// As the functions of comm/collectives.h, with a bucket, by which names are compared.
Job::Launch LaunchOf(const Collective& collective) {
  return [=](Communicator& communicator) {
    Operation operation;
    operation.kind = collective.kind;
    operation.dtype = collective.target.dtype;
    operation.reduce_op = collective.reduce_op;
    operation.peer = collective.root;
    operation.count = collective.count;
    operation.bucket = collective.bucket;
    operation.tag = collective.shape_mark;
    const auto place = [](const Tensor& tensor) {
      return Locate(tensor.data, tensor.count * SizeOf(tensor.dtype));
    };
    operation.set_source(place(collective.source));
    operation.set_target(place(collective.target));
    HostStream stream;
    return communicator.Launch(operation, stream);
  };
}

// What ranks gather: packed, and on the queue's device. Errors (thrown): InvalidArgument: it is
// not.
at::Tensor GatheredInput(Call& call, const at::Tensor& tensor, bool is_on_gpu = false) {
  at::Tensor packed = call.Keeps(tensor, "tensor");
  if (!is_on_gpu && !packed.device().is_cpu()) {
    call.Refuse(absl::StrCat("tensor: is on ", packed.device().str(), "; must be on the CPU"));
  }
  if (packed.dim() < 1 || packed.dim() > kMostGatheredDimensions) {
    call.Refuse(absl::StrCat("tensor: has ", packed.dim(),
                             " dimensions; what is gathered has 1 to ", kMostGatheredDimensions));
  }
  return packed;
}

// An allgather whose ranks tell their shapes first. Threads: one at a time. Owns: the messages.
struct Gathering {
  int rank;
  BucketId bucket;
  at::Tensor input;
  ShapeMessage mine;
  std::vector<ShapeMessage> shapes;  // by rank

  // The first difference from rank 0's, which all ranks see alike; "": there is none.
  std::string Difference() const {
    for (size_t r = 1; r < shapes.size(); ++r) {
      if (shapes[r].FitsTo(shapes[0])) continue;
      return DifferenceOf(shapes[0], 0, shapes[r], static_cast<int>(r));
    }
    return "";
  }

  // One allgather where the tensors are equally long, else a broadcast of each that is not empty;
  // all of them know which. Nothing where they do not fit.
  std::vector<Job::Launch> Parts(Outcome& outcome) {
    if (std::string difference = Difference(); !difference.empty()) {
      outcome.failure = absl::InvalidArgumentError(absl::StrCat("allgather: ", difference));
      return {};
    }
    int64_t total = 0;
    bool are_alike = true;
    for (const ShapeMessage& shape : shapes) {
      total += shape.first();
      are_alike = are_alike && shape.first() == mine.first();
    }
    outcome.result = EmptyGathered(input, total);
    if (outcome.result.nbytes() == 0) return {};
    if (!are_alike) return Broadcasts(BytesOf(outcome.result));
    std::vector<Job::Launch> launches;
    launches.push_back(LaunchOf({.kind = OperationKind::kAllGather,
                                 .source = BytesOf(input),
                                 .target = BytesOf(outcome.result),
                                 .count = mine.bytes(),
                                 .bucket = bucket}));
    return launches;
  }

  std::vector<Job::Launch> Broadcasts(const Tensor& result) const {
    std::vector<Job::Launch> launches;
    uint64_t begin = 0;
    for (size_t r = 0; r < shapes.size(); ++r) {
      const Tensor part = PartOf(result, begin, shapes[r].bytes());
      begin += part.count;
      if (part.count == 0) continue;
      const int32_t root = static_cast<int32_t>(r);
      if (root == rank) std::memcpy(part.data, BytesOf(input).data, part.count);
      launches.push_back(LaunchOf({.kind = OperationKind::kBroadcast,
                                   .source = part,
                                   .target = part,
                                   .count = part.count,
                                   .bucket = bucket,
                                   .root = root}));
    }
    return launches;
  }
};

}  // namespace

int32_t NumberOf(const std::string& name) {
  return static_cast<int32_t>((HashOf(name) >> 32) % kEvaluationBit);
}

PythonQueue::PythonQueue(std::shared_ptr<Backend> backend, const Group& group,
                         const at::Device& device)
    : group_(std::make_shared<const Group>(group)),
      rank_(group.RankOf(backend->rank()).value_or(Rank(-1)).value()),
      world_size_(group.size().value()),
      timeout_(backend->options().operation_timeout),
      device_(device) {
  const Device where = ValueOrThrow(ToDevice(device, "the tensor"));
  struct Opened {
    std::shared_ptr<Backend> backend;
    std::unique_ptr<Communicator> communicator;  // must go before the backend
  };
  auto opened = std::make_shared<Opened>();
  opened->communicator = ValueOrThrow(backend->Open(group, where));
  opened->backend = std::move(backend);
  lane_ = lane::Lane::Create(std::shared_ptr<Communicator>(opened, opened->communicator.get()));
}

void PythonQueue::Close() {
  if (!IsForkedChild()) lane_->Stop();
}

Call PythonQueue::Begin(const char* what, const Run& run, Call::Use use) const {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  const std::string shown = run.shown_as.value_or(what);
  return {run.name.has_value() ? absl::StrCat(shown, " '", *run.name, "'") : shown, use};
}

Call PythonQueue::BeginOnDevice(const char* what, const Run& run, Call::Use use,
                                const at::Tensor& tensor) const {
  Call call = Begin(what, run, use);
  call.SetSend();
  if (device_.is_cpu()) return call;
  call.TakesGpu();
  if (tensor.defined() && tensor.device() != device_) {
    call.Refuse(absl::StrCat("tensor: is on ", tensor.device().str(), "; must be on ",
                             device_.str(), ", as its queue"));
  }
  return call;
}

std::optional<CudaStream> PythonQueue::CallersStream() const {
  if (device_.is_cpu()) return std::nullopt;
  return CudaStream(CurrentStreamOf(device_)(), device_.index());
}

PythonQueue::Handle PythonQueue::Submit(const Run& run, Job job, std::shared_ptr<Outcome> outcome) {
  lane::JobHandle handle = run.waits ? lane_->Run(std::move(job)) : lane_->Enqueue(std::move(job));
  auto shown = std::make_shared<PythonHandle>(lane_, std::move(handle), std::move(outcome), group_);
  if (run.waits) shown->Wait();
  return shown;
}

PythonQueue::Handle PythonQueue::AllReduce(const Run& run, const at::Tensor& tensor, int op,
                                           bool in_place, const Target& into) {
  Call call = Begin("allreduce", run, Call::Use::kReduced);
  const at::Tensor result = in_place ? tensor : ResultOf(call, tensor, into);
  const Tensor target = in_place ? call.Updates(tensor, "tensor") : call.Writes(result, "result");
  const Tensor source = in_place ? target : call.Reads(tensor, "tensor");
  call.Launch(LaunchOf({.kind = OperationKind::kAllReduce,
                        .source = source,
                        .target = target,
                        .count = target.count,
                        .bucket = BucketOf(run),
                        .reduce_op = static_cast<ReduceOp>(op),
                        .shape_mark = ShapeMarkOf(tensor)}));
  return Submit(run, std::move(call), std::make_shared<Outcome>(Outcome{.result = result}));
}

PythonQueue::Handle PythonQueue::Broadcast(const Run& run, const at::Tensor& tensor, int root,
                                           bool in_place) {
  Call call = Begin("broadcast", run, Call::Use::kMoved);
  if (root < 0 || root >= world_size_) {
    call.Refuse(absl::StrCat("root_rank: ", root, " is not in [0, ", world_size_, ")"));
  }
  const at::Tensor result = in_place ? tensor : EmptyLike(tensor);
  if (!in_place && root == rank_) result.copy_(tensor.detach());
  const Tensor flat = call.Updates(result, "tensor");
  call.Launch(LaunchOf({.kind = OperationKind::kBroadcast,
                        .source = flat,
                        .target = flat,
                        .count = flat.count,
                        .bucket = BucketOf(run),
                        .root = root,
                        .shape_mark = ShapeMarkOf(tensor)}));
  return Submit(run, std::move(call), std::make_shared<Outcome>(Outcome{.result = result}));
}

PythonQueue::Handle PythonQueue::AllGather(const Run& run, const at::Tensor& tensor) {
  Call call = Begin("allgather", run, Call::Use::kMoved);
  const at::Tensor input = GatheredInput(call, tensor);
  auto gathering = std::make_shared<Gathering>(
      Gathering{rank_, BucketOf(run), input, ShapeMessage::Of(input),
                std::vector<ShapeMessage>(static_cast<size_t>(world_size_))});
  const Tensor shapes{gathering->shapes.data(), gathering->shapes.size() * ShapeMessage::kWords,
                      DType::kInt64};
  call.Launch(LaunchOf({.kind = OperationKind::kAllGather,
                        .source = gathering->mine.flat(),
                        .target = shapes,
                        .count = ShapeMessage::kWords,
                        .bucket = gathering->bucket}));
  auto outcome = std::make_shared<Outcome>();
  // The parts follow in the same place of the order of all calls, whatever comes after this one.
  call.Continue([gathering, outcome, has_begun = false]() mutable {
    if (std::exchange(has_begun, true)) return std::vector<Job::Launch>();
    return gathering->Parts(*outcome);
  });
  return Submit(run, std::move(call), outcome);
}

PythonQueue::Handle PythonQueue::NeighborAllReduce(const Run& run, const at::Tensor& tensor,
                                                   const Table& table, const Target& into) {
  Call call = BeginOnDevice("neighbor_allreduce", run, Call::Use::kReduced, tensor);
  const at::Tensor result = ResultOf(call, tensor, into);
  const Tensor target = call.Writes(result, "result");
  const Tensor source = call.Reads(tensor, "tensor");
  call.Launch([source, target, table, label = LabelOf(run, tensor),
               stream = CallersStream()](Communicator& communicator) mutable {
    return pelton::NeighborAllReduce(communicator, source, target, *table, label,
                                     stream.has_value() ? &*stream : nullptr);
  });
  return Submit(run, std::move(call), std::make_shared<Outcome>(Outcome{.result = result}));
}

PythonQueue::Handle PythonQueue::HierarchicalNeighborAllReduce(const Run& run,
                                                               const at::Tensor& tensor,
                                                               const Table& table,
                                                               PythonQueue& inner,
                                                               const Target& into) {
  Call first = Begin("hierarchical_neighbor_allreduce", run, Call::Use::kReduced);
  Call second = Begin("hierarchical_neighbor_allreduce", run, Call::Use::kReduced);
  const at::Tensor mean = EmptyLike(tensor);
  const at::Tensor result = ResultOf(first, tensor, into);
  const Tensor middle = first.Writes(mean, "result");
  first.Launch(LaunchOf({.kind = OperationKind::kAllReduce,
                         .source = first.Reads(tensor, "tensor"),
                         .target = middle,
                         .count = middle.count,
                         .bucket = BucketOf(run),
                         .reduce_op = ReduceOp::kAvg,
                         .shape_mark = ShapeMarkOf(tensor)}));
  second.SetSend();
  const Tensor target = second.Writes(result, "result");
  const Tensor source = second.Reads(mean, "mean");
  // Machines may be ready in another order than that of the calls.
  EdgeLabel label = LabelOf(run, tensor);
  if (!run.name.has_value()) {
    label.tag = kHalfOfTags + static_cast<int32_t>(hierarchical_.fetch_add(1) % kHalfOfTags);
  }
  auto has_mean = std::make_shared<bool>(false);  // of the first job, which the second one follows
  second.Launch([=](Communicator& communicator) mutable {
    if (!*has_mean) label.shape_mark = kFailedStageMark;
    return pelton::NeighborAllReduce(communicator, source, target, *table, label);
  });
  auto outcome = std::make_shared<Outcome>(Outcome{.result = result, .next_lane = lane_});
  first.Finally([has_mean] { *has_mean = true; });
  Job means = first.Take(timeout_);
  // Without a mean, too: the neighbours would wait for this rank.
  means.ended = [outcome, job = second.Take(timeout_)]() mutable {
    outcome->next = outcome->next_lane->Enqueue(std::move(job));
  };
  return inner.Submit(run, std::move(means), outcome);
}

PythonQueue::Handle PythonQueue::NeighborAllGather(const Run& run, const at::Tensor& tensor,
                                                   const Table& table) {
  Call call = Begin("neighbor_allgather", run, Call::Use::kMoved);
  call.SetSend();
  NeighborGather::Place place{
      .rank = rank_,
      .tag = TagOf(run),
      .data_tag = kNeighborTags + static_cast<int32_t>(gathers_.fetch_add(1) % kNeighborTags)};
  auto gather =
      std::make_shared<NeighborGather>(place, HashOf(run), table, GatheredInput(call, tensor));
  for (Job::Launch& launch : gather->Shapes()) call.Launch(std::move(launch));
  auto outcome = std::make_shared<Outcome>();
  outcome->next_lane = lane_;
  call.Finally([gather, outcome, name = call.name(), timeout = timeout_] {
    Call parts(name, Call::Use::kMoved);
    parts.SetSend();
    if (!gather->Parts(parts, *outcome)) return;
    outcome->next = outcome->next_lane->Enqueue(parts.Take(timeout));
  });
  return Submit(run, std::move(call), outcome);
}

void PythonQueue::TellShapes(const Run& run, std::shared_ptr<NeighborGather> gather) {
  Call shapes = Begin("neighbor_allgather", run, Call::Use::kMoved);
  shapes.SetSend();
  for (Job::Launch& launch : gather->Shapes()) shapes.Launch(std::move(launch));
  shapes.Finally([gather] {});  // its memory, to the end
  ThrowIfError(lane_->Run(shapes.Take(timeout_))->status());
}

PythonQueue::Handle PythonQueue::NeighborAllGather(const Run& run, const at::Tensor& tensor,
                                                   const Table& table, PythonQueue& host) {
  Call call = BeginOnDevice("neighbor_allgather", run, Call::Use::kMoved, tensor);
  const NeighborGather::Place place{.rank = rank_, .tag = kShapesOnGpuTag, .data_tag = 0};
  const at::Tensor input = GatheredInput(call, tensor, /*is_on_gpu=*/true);
  auto gather = std::make_shared<NeighborGather>(place, HashOf(run), table, input);
  host.TellShapes(run, gather);
  auto outcome = std::make_shared<Outcome>();
  const Table edges = gather->Edges(*outcome);
  const EdgeLabel label{.tag = TagOf(run), .bucket = BucketOf(run)};
  call.Launch([source = BytesOf(input), target = BytesOf(outcome->result), edges, label,
               stream = CallersStream()](Communicator& communicator) mutable {
    return pelton::NeighborAllGather(communicator, source, target, *edges, label,
                                     stream.has_value() ? &*stream : nullptr);
  });
  call.Finally([result = outcome->result] {});
  return Submit(run, std::move(call), outcome);
}

void PythonQueue::Barrier(absl::Duration timeout) {
  Call call = Begin("barrier", {}, Call::Use::kMoved);
  call.Launch([](Communicator& communicator) { return pelton::Barrier(communicator); });
  ThrowIfError(lane_->Run(call.Take(timeout))->status());
}

}  // namespace pelton::torch_bindings
