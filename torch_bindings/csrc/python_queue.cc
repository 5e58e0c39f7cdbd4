#include "torch_bindings/csrc/python_queue.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "comm/tags.h"
#include "core/base/fork.h"
#include "core/memory/device_queue.h"
#include "core/plan/round_mode.h"
#include "torch_bindings/csrc/gathers.h"
#include "torch_bindings/csrc/outcome.h"
#include "torch_bindings/csrc/shape_message.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/status_error.h"
#include "torch_bindings/csrc/tensors.h"

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

// Positive: see comm/tags.h. Source: FNV-1a, of words.
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

// Of the machine, which a hierarchical operation begins with.
enum class Mean : uint8_t { kUnderWay, kThere, kFailed };

void NoteEnd(std::atomic<Mean>& mean) {
  Mean under_way = Mean::kUnderWay;
  mean.compare_exchange_strong(under_way, Mean::kFailed);
}

// A job of nothing, for which a lane looks at what it could not launch before.
Job LookAgain() {
  Job job;
  job.queue = Job::Queue::kReceives;
  return job;
}

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
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
  lane_ = lane::Lane::Create(std::shared_ptr<Communicator>(opened, opened->communicator.get()),
                             nullptr, &opened->backend->absences().standstill());
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

// Its order among all operations counts on a GPU, so that it is in one queue with the others there.
Call PythonQueue::BeginCollective(const char* what, const Run& run, Call::Use use,
                                  const at::Tensor& tensor) const {
  return device_.is_cpu() ? Begin(what, run, use) : BeginOnDevice(what, run, use, tensor);
}

std::optional<CudaStream> PythonQueue::OwnStream() const {
  if (!stream_.has_value()) return std::nullopt;
  return CudaStream(static_cast<cuda::StreamHandle>(stream_->native_handle()), device_.index());
}

void PythonQueue::FollowCaller() const {
  if (!stream_.has_value()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  c10::Event made(device_.type());
  made.record(guard.getStream(device_));
  made.block(*stream_);
}

PythonQueue::Handle PythonQueue::Submit(const Run& run, Job job, std::shared_ptr<Outcome> outcome) {
  FollowCaller();
  lane::JobHandle handle = run.waits ? lane_->Run(std::move(job)) : lane_->Enqueue(std::move(job));
  auto shown = std::make_shared<PythonHandle>(lane_, std::move(handle), std::move(outcome), group_);
  if (run.waits) shown->Wait();
  return shown;
}

PythonQueue::Handle PythonQueue::AllReduce(const Run& run, const at::Tensor& tensor, int op,
                                           bool in_place, const Target& into) {
  Call call = BeginCollective("allreduce", run, Call::Use::kReduced, tensor);
  const at::Tensor result = in_place ? tensor : ResultOf(call, tensor, into);
  const Tensor target = in_place ? call.Updates(tensor, "tensor") : call.Writes(result, "result");
  const Tensor source = in_place ? target : call.Reads(tensor, "tensor");
  call.Launch(LaunchOf({.kind = OperationKind::kAllReduce,
                        .source = source,
                        .target = target,
                        .op = static_cast<ReduceOp>(op),
                        .bucket = BucketOf(run),
                        .shape_mark = ShapeMarkOf(tensor)},
                       OwnStream()));
  return Submit(run, std::move(call), std::make_shared<Outcome>(Outcome{.result = result}));
}

PythonQueue::Handle PythonQueue::Broadcast(const Run& run, const at::Tensor& tensor, int root,
                                           bool in_place) {
  Call call = BeginCollective("broadcast", run, Call::Use::kMoved, tensor);
  if (root < 0 || root >= world_size_) {
    call.Refuse(absl::StrCat("root_rank: ", root, " is not in [0, ", world_size_, ")"));
  }
  const at::Tensor result = in_place ? tensor : EmptyLike(tensor);
  if (!in_place && root == rank_) result.copy_(tensor.detach());
  call.Launch(LaunchOf({.kind = OperationKind::kBroadcast,
                        .target = call.Updates(result, "tensor"),
                        .root = Rank(root),
                        .bucket = BucketOf(run),
                        .shape_mark = ShapeMarkOf(tensor)},
                       OwnStream()));
  return Submit(run, std::move(call), std::make_shared<Outcome>(Outcome{.result = result}));
}

PythonQueue::Handle PythonQueue::AllGather(const Run& run, const at::Tensor& tensor,
                                           PythonQueue* host) {
  Call call = BeginCollective("allgather", run, Call::Use::kMoved, tensor);
  const at::Tensor input = GatheredInput(call, tensor, /*is_on_gpu=*/host != nullptr);
  const RankGather::Place place{rank_, world_size_, BucketOf(run), OwnStream()};
  auto gather = std::make_shared<RankGather>(place, input);
  auto outcome = std::make_shared<Outcome>();
  if (host == nullptr) {
    call.Launch(gather->Shapes());
    // The parts follow in the same place of the order of all calls, whatever comes after this one.
    call.Continue([gather, outcome, has_begun = false]() mutable {
      if (std::exchange(has_begun, true)) return std::vector<Job::Launch>();
      return gather->Parts(*outcome);
    });
    return Submit(run, std::move(call), outcome);
  }
  Call shapes = Begin("allgather", run, Call::Use::kMoved);
  shapes.Launch(gather->Shapes());
  shapes.Finally([gather] {});  // its memory, to the end
  host->Submit({.name = run.name, .waits = true}, std::move(shapes), std::make_shared<Outcome>());
  for (Job::Launch& launch : gather->Parts(*outcome)) call.Launch(std::move(launch));
  call.Finally([result = outcome->result] {});
  return Submit(run, std::move(call), outcome);
}

PythonQueue::Handle PythonQueue::NeighborAllReduce(const Run& run, const at::Tensor& tensor,
                                                   const Table& table, const Target& into) {
  Call call = BeginOnDevice("neighbor_allreduce", run, Call::Use::kReduced, tensor);
  const at::Tensor result = ResultOf(call, tensor, into);
  const Tensor target = call.Writes(result, "result");
  const Tensor source = call.Reads(tensor, "tensor");
  call.Launch([source, target, table, label = LabelOf(run, tensor),
               stream = OwnStream()](Communicator& communicator) mutable {
    return pelton::NeighborAllReduce(communicator, source, target, *table, label,
                                     PointerTo(stream));
  });
  return Submit(run, std::move(call), std::make_shared<Outcome>(Outcome{.result = result}));
}

PythonQueue::Handle PythonQueue::HierarchicalNeighborAllReduce(const Run& run,
                                                               const at::Tensor& tensor,
                                                               const Table& table,
                                                               PythonQueue& inner,
                                                               const Target& into) {
  const char* const what = "hierarchical_neighbor_allreduce";
  Call first = inner.BeginCollective(what, run, Call::Use::kReduced, tensor);
  Call second = BeginOnDevice(what, run, Call::Use::kReduced, tensor);
  const at::Tensor mean = EmptyLike(tensor);
  const at::Tensor result = ResultOf(first, tensor, into);
  const Tensor middle = first.Writes(mean, "result");
  first.Launch(LaunchOf({.kind = OperationKind::kAllReduce,
                         .source = first.Reads(tensor, "tensor"),
                         .target = middle,
                         .op = ReduceOp::kAvg,
                         .bucket = BucketOf(run),
                         .shape_mark = ShapeMarkOf(tensor)},
                        inner.OwnStream()));
  const Tensor target = second.Writes(result, "result");
  const Tensor source = second.Reads(mean, "mean");
  EdgeLabel label = LabelOf(run, tensor);
  // Machines may be ready in another order than that of the calls. A GPU's operations have none.
  if (!run.name.has_value() && device_.is_cpu()) {
    label.tag = kHalfOfTags + static_cast<int32_t>(hierarchical_.fetch_add(1) % kHalfOfTags);
  }
  const auto mean_is = std::make_shared<std::atomic<Mean>>(Mean::kUnderWay);  // of the first job
  second.Launch(
      [=, stream = OwnStream()](Communicator& communicator) mutable -> absl::StatusOr<Completion> {
        const Mean now = *mean_is;
        // The lane asks again: the operation's place among those of a GPU is that of its call.
        if (now == Mean::kUnderWay) return absl::ResourceExhaustedError("the mean is under way");
        if (now == Mean::kFailed) label.shape_mark = kFailedStageMark;
        return pelton::NeighborAllReduce(communicator, source, target, *table, label,
                                         PointerTo(stream));
      });
  auto outcome = std::make_shared<Outcome>(Outcome{.result = result, .next_lane = lane_});
  first.Finally([mean_is] { *mean_is = Mean::kThere; });
  Job means = first.Take(timeout_);
  // Without a mean, too: the neighbours would wait for this rank.
  if (device_.is_cpu()) {
    means.ended = [outcome, mean_is, job = second.Take(timeout_)]() mutable {
      NoteEnd(*mean_is);
      outcome->next = outcome->next_lane->Enqueue(std::move(job));
    };
  } else {
    FollowCaller();  // for the result's memory
    outcome->next = lane_->Enqueue(second.Take(timeout_));
    means.ended = [outcome, mean_is] {
      NoteEnd(*mean_is);
      outcome->next_lane->Enqueue(LookAgain());
    };
  }
  return inner.Submit(run, std::move(means), outcome);
}

PythonQueue::Handle PythonQueue::NeighborAllGather(const Run& run, const at::Tensor& tensor,
                                                   const Table& table, PythonQueue* host) {
  if (host != nullptr) return NeighborAllGatherOnGpu(run, tensor, table, *host);
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

PythonQueue::Handle PythonQueue::NeighborAllGatherOnGpu(const Run& run, const at::Tensor& tensor,
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
               stream = OwnStream()](Communicator& communicator) mutable {
    return pelton::NeighborAllGather(communicator, source, target, *edges, label,
                                     PointerTo(stream));
  });
  call.Finally([result = outcome->result] {});
  return Submit(run, std::move(call), outcome);
}

void PythonQueue::Barrier(absl::Duration timeout) {
  Call call = Begin("barrier", {}, Call::Use::kMoved);
  call.Launch([](Communicator& communicator) { return pelton::Barrier(communicator); });
  ThrowIfError(lane_->Run(call.Take(timeout))->status());
}

void PythonQueue::Leave(const std::string& name, const std::string& reason,
                        absl::Duration timeout) {
  Call call = Begin("shutdown", {}, Call::Use::kMoved);
  call.Launch(LaunchOf({.kind = OperationKind::kBarrier, .bucket = BucketId(NumberOf(name))}, {}));
  Job job = call.Take(timeout);
  job.overdue = absl::UnavailableError(reason);
  ThrowIfError(lane_->Run(std::move(job))->status());
}

}  // namespace pelton::torch_bindings
