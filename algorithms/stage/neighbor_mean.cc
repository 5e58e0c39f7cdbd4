#include "algorithms/stage/neighbor_mean.h"

#include <vector>

#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {

// Nothing is in flight here. Of graphs that never repeat nobody can say how many sources a later
// step will have, and for the most that there may be a rank would keep a model for each other rank.
absl::Status NeighborMessages::MakeRoom(size_t source_count) {
  if (source_count <= capacity_) return absl::OkStatus();
  received_.reset();
  capacity_ = 0;
  ASSIGN_OR_RETURN(received_, Scratch::Create(communicator_, name_, message_bytes_ * source_count));
  capacity_ = source_count;
  return absl::OkStatus();
}

// Both ends of an edge meet it in the order of ranks: where there are more operations than may be
// in flight, no circle of ranks waits for each other.
absl::Status NeighborMessages::Begin(const Neighborhood& neighborhood, Location message) {
  batch_.Clear();
  RETURN_IF_ERROR(MakeRoom(neighborhood.sources.size()));
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
  return absl::OkStatus();
}

void NeighborMessages::Post(OperationKind kind, Rank peer, Location location) {
  batch_.Add(SendOrReceiveOf(kind, peer, message_bytes_, location, communicator_.id()));
}

namespace {

// Threads: as Stage. Owns: what averages.
class NeighborMeanStage final : public Stage {
 public:
  explicit NeighborMeanStage(std::unique_ptr<NeighborMean> mean) : mean_(std::move(mean)) {}
  absl::string_view name() const override { return "neighbours' mean"; }

  absl::Status Start(BucketRun& run, StageState*) override {
    if (run.layout().flat_count == 0) return absl::OkStatus();
    return mean_->Begin(run, run.flat(), run.segments().front().location);
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    if (run.layout().flat_count == 0) return true;
    return mean_->Advance(run);
  }

 private:
  const std::unique_ptr<NeighborMean> mean_;
};

}  // namespace

absl::Status NeighborMean::Begin(const BucketRun& run, std::byte* tensor, Location location) {
  tensor_ = tensor;
  is_global_ = IsMultiple(run, global_interval_);
  if (is_global_) {
    global_.Clear();
    global_.Add(AllReduceOf(ReduceOp::kAvg, shape_.dtype, shape_.count, location, communicator_));
    return absl::OkStatus();
  }
  now_ = neighbors_.NeighborsAt(static_cast<uint64_t>(run.round().value()) - 1);
  return messages_.Begin(now_, location);
}

absl::StatusOr<bool> NeighborMean::Advance(BucketRun& run) {
  if (is_global_) return global_.Advance(run);
  ASSIGN_OR_RETURN(const bool done, messages_.Advance(run));
  if (done) Average();
  return done;
}

void NeighborMean::Average() const {
  std::vector<Term> terms = {{tensor_, now_.own, shape_.dtype}};
  for (size_t i = 0; i < now_.sources.size(); ++i) {
    terms.push_back({messages_.from(i), now_.sources[i].weight, shape_.dtype});
  }
  LinearCombination(terms, {tensor_, shape_.dtype}, shape_.count);
}

std::unique_ptr<Stage> MakeNeighborMeanStage(Communicator& communicator, NeighborMean::Over over,
                                             const BucketLayout& layout) {
  return std::make_unique<NeighborMeanStage>(
      std::make_unique<NeighborMean>(communicator, "neighbours' weights", std::move(over),
                                     NeighborMean::Shape{layout.dtype, layout.flat_count}));
}

}  // namespace pelton
