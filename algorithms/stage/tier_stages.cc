#include "algorithms/stage/tier_stages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "algorithms/codec/error_feedback.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

void Deliver(const BucketRun& run, const StateBuffer& buffer, double factor) {
  const uint64_t size_bytes = buffer.count * SizeOf(buffer.dtype);
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  // Nearly always: a sum with zeros would turn -0 into 0, and cost a pass.
  if (std::all_of(buffer.data, buffer.data + size_bytes, is_zero)) return;
  const DType dtype = run.layout().dtype;
  const Term terms[] = {{run.flat(), 1, dtype}, {buffer.data, factor, buffer.dtype}};
  LinearCombination(terms, {run.flat(), dtype}, buffer.count);
  std::memset(buffer.data, 0, size_bytes);
}

// One operation per segment, in place, with the host's leader as its root. Another bucket waits
// for it, because a runner over tiers parks on one of them (comm/tiers.h).
std::unique_ptr<Stage> MakeHostStage(absl::string_view name, const Tiers& tiers, OperationKind kind,
                                     ReduceOp op) {
  Operation operation;
  operation.kind = kind;
  operation.reduce_op = op;
  operation.peer = 0;
  operation.communicator = tiers.host->id();
  return MakeInPlaceStage(name, operation, /*next_may_follow=*/false);
}

}  // namespace

std::unique_ptr<Stage> MakeDeliverStage(absl::string_view name, const BucketLayout& layout,
                                        std::vector<StateBuffer> kept, double factor) {
  for (StateBuffer& buffer : kept) {
    buffer.dtype = FeedbackDType(layout.dtype);
    buffer.count = layout.content_count;
  }
  const auto deliver = [factor](const BucketRun& run, absl::Span<const StateBuffer> kept) {
    for (const StateBuffer& buffer : kept) {
      if (buffer.scope != StateScope::kCommon) Deliver(run, buffer, factor);
    }
  };
  return MakeLocalStage(name, deliver, std::move(kept));
}

absl::Status AddExchangeOfPeers(const Tiers& tiers, bool hosts_are_peers, ReduceOp op,
                                PeerExchange add_exchange, PipelineSpec& spec) {
  if (!hosts_are_peers) {
    const auto size = static_cast<size_t>(tiers.all->world_size().value());
    return add_exchange(*tiers.all, std::vector<int32_t>(size, 1));
  }
  if (!tiers.are_open()) {
    return absl::InvalidArgumentError(
        "hierarchical: no tiers are open, so hosts cannot exchange; give the model a backend that "
        "opens them, or set hierarchical=false");
  }
  spec.stages.push_back(MakeHostStage("reduce to leader", tiers, OperationKind::kReduce, op));
  if (tiers.is_leader()) RETURN_IF_ERROR(add_exchange(*tiers.leaders, tiers.host_sizes));
  spec.stages.push_back(
      MakeHostStage("broadcast from leader", tiers, OperationKind::kBroadcast, ReduceOp::kSum));
  return absl::OkStatus();
}

}  // namespace pelton
