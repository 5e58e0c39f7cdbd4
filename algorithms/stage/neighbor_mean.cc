#include "algorithms/stage/neighbor_mean.h"

#include <algorithm>
#include <vector>

#include "algorithms/stage/graph_options.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<NeighborMessages>> NeighborMessages::Create(
    Communicator& communicator, const std::string& name, uint64_t message_bytes,
    size_t most_sources) {
  const uint64_t size_bytes = std::max<uint64_t>(message_bytes * most_sources, 1);
  ASSIGN_OR_RETURN(std::unique_ptr<Scratch> received,
                   Scratch::Create(communicator, name, size_bytes));
  return std::unique_ptr<NeighborMessages>(
      new NeighborMessages(communicator.id(), message_bytes, std::move(received)));
}

// Both ends of an edge meet it in the order of ranks: where there are more operations than may be
// in flight, no circle of ranks waits for each other.
void NeighborMessages::Begin(const Neighborhood& neighborhood, Location message) {
  batch_.Clear();
  const std::vector<Neighbor>& sources = neighborhood.sources;
  const std::vector<Neighbor>& destinations = neighborhood.destinations;
  size_t source = 0;
  for (const Neighbor& destination : destinations) {
    while (source < sources.size() && sources[source].rank < destination.rank) {
      Post(OperationKind::kRecv, sources[source].rank, received_->At(source * message_bytes_));
      ++source;
    }
    Post(OperationKind::kSend, destination.rank, message);
  }
  for (; source < sources.size(); ++source) {
    Post(OperationKind::kRecv, sources[source].rank, received_->At(source * message_bytes_));
  }
}

void NeighborMessages::Post(OperationKind kind, Rank peer, Location location) {
  Operation operation;
  operation.kind = kind;
  operation.dtype = DType::kUInt8;
  operation.count = message_bytes_;
  operation.peer = peer.value();
  operation.communicator = communicator_;
  kind == OperationKind::kSend ? operation.set_source(location) : operation.set_target(location);
  batch_.Add(operation);
}

namespace {

// Threads: as Stage. Owns: what averages.
class NeighborMeanStage final : public Stage {
 public:
  explicit NeighborMeanStage(std::unique_ptr<NeighborMean> mean) : mean_(std::move(mean)) {}
  absl::string_view name() const override { return "neighbours' mean"; }
  StageKind kind() const override { return StageKind::kExchange; }

  absl::Status Start(BucketRun& run, StageState*) override {
    if (run.layout().flat_count == 0) return absl::OkStatus();
    mean_->Begin(run, run.flat(), run.segments().front().location);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    if (run.layout().flat_count == 0) return true;
    return mean_->Advance(run);
  }

 private:
  const std::unique_ptr<NeighborMean> mean_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NeighborMean>> NeighborMean::Create(Communicator& communicator,
                                                                   const std::string& name,
                                                                   Over over, Shape shape) {
  ASSIGN_OR_RETURN(std::unique_ptr<NeighborMessages> messages,
                   NeighborMessages::Create(communicator, name, shape.count * SizeOf(shape.dtype),
                                            MostSources(*over.graphs)));
  return std::unique_ptr<NeighborMean>(
      new NeighborMean(communicator, std::move(over), shape, std::move(messages)));
}

void NeighborMean::Begin(const BucketRun& run, std::byte* tensor, Location location) {
  tensor_ = tensor;
  is_global_ = IsMultiple(run, global_interval_);
  if (is_global_) {
    global_.Clear();
    global_.Add(GlobalMeanOf(shape_, location, communicator_));
    return;
  }
  // A graph is known in every step.
  now_ = *neighbors_.NeighborsAt(static_cast<uint64_t>(run.round().value()) - 1);
  messages_->Begin(now_, location);
}

absl::StatusOr<bool> NeighborMean::Advance(BucketRun& run) {
  if (is_global_) return global_.Advance(run);
  ASSIGN_OR_RETURN(const bool done, messages_->Advance(run));
  if (done) Average();
  return done;
}

void NeighborMean::Average() const {
  std::vector<Term> terms = {{tensor_, now_.own, shape_.dtype}};
  for (size_t i = 0; i < now_.sources.size(); ++i) {
    terms.push_back({messages_->from(i), now_.sources[i].weight, shape_.dtype});
  }
  LinearCombination(terms, {tensor_, shape_.dtype}, shape_.count);
}

Operation GlobalMeanOf(NeighborMean::Shape shape, Location location, CommunicatorId communicator) {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.reduce_op = ReduceOp::kAvg;
  operation.dtype = shape.dtype;
  operation.count = shape.count;
  operation.communicator = communicator;
  operation.set_source(location);
  operation.set_target(location);
  return operation;
}

absl::StatusOr<std::unique_ptr<Stage>> MakeNeighborMeanStage(Communicator& communicator,
                                                             NeighborMean::Over over,
                                                             const BucketLayout& layout) {
  ASSIGN_OR_RETURN(std::unique_ptr<NeighborMean> mean,
                   NeighborMean::Create(communicator, "neighbours' weights", std::move(over),
                                        {layout.dtype, layout.flat_count}));
  return std::make_unique<NeighborMeanStage>(std::move(mean));
}

}  // namespace pelton
