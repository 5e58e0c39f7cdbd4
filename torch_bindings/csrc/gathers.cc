#include "torch_bindings/csrc/gathers.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {

NeighborGather::NeighborGather(const Place& place, uint64_t name,
                               std::shared_ptr<const WeightTable> table, at::Tensor input)
    : place_(place), table_(std::move(table)), input_(std::move(input)) {
  mine_ = ShapeMessage::Of(input_);
  mine_.name = name;
  mine_.data_tag = place_.data_tag;
  for (const Neighbor& source : table_->sources()) theirs_[source.rank.value()] = {};
  for (const Neighbor& destination : table_->destinations()) theirs_[destination.rank.value()] = {};
}

std::vector<lane::Job::Launch> NeighborGather::Shapes() {
  std::vector<lane::Job::Launch> launches;
  for (auto& [rank, theirs] : theirs_) {
    launches.push_back(RecvOf(theirs.flat(), Rank(rank), place_.tag));
    launches.push_back(SendOf(mine_.flat(), Rank(rank), place_.tag));
  }
  return launches;
}

bool NeighborGather::Moves(int32_t peer, Outcome& outcome) const {
  const ShapeMessage& theirs = theirs_.at(peer);
  if (mine_.FitsTo(theirs)) return true;
  if (outcome.failure.ok()) {
    outcome.failure = absl::InvalidArgumentError(
        absl::StrCat("neighbor_allgather: ", DifferenceOf(mine_, place_.rank, theirs, peer)));
  }
  return false;
}

void NeighborGather::MakeResult(Outcome& outcome) const {
  int64_t total = 0;
  for (const Neighbor& source : table_->sources()) {
    const bool fits = Moves(source.rank.value(), outcome);
    outcome.lengths.push_back(fits ? theirs_.at(source.rank.value()).first() : 0);
    total += outcome.lengths.back();
  }
  outcome.result = EmptyGathered(input_, total);
}

std::shared_ptr<const WeightTable> NeighborGather::Edges(Outcome& outcome) const {
  MakeResult(outcome);
  Neighborhood neighborhood;
  WeightTable::Form form;
  for (const Neighbor& source : table_->sources()) {
    if (!Moves(source.rank.value(), outcome)) continue;
    neighborhood.sources.push_back(source);
    form.source_counts.push_back(theirs_.at(source.rank.value()).bytes());
  }
  for (const Neighbor& destination : table_->destinations()) {
    if (Moves(destination.rank.value(), outcome)) neighborhood.destinations.push_back(destination);
  }
  // A part of a table that was accepted.
  return ValueOrThrow(WeightTable::Create(std::move(neighborhood), std::move(form)));
}

bool NeighborGather::Parts(Call& call, Outcome& outcome) {
  bool moves = false;
  MakeResult(outcome);
  const Tensor result = BytesOf(outcome.result);
  uint64_t begin = 0;
  for (const Neighbor& source : table_->sources()) {
    const ShapeMessage& theirs = theirs_.at(source.rank.value());
    if (!mine_.FitsTo(theirs) || theirs.bytes() == 0) continue;
    moves = true;
    call.Launch(RecvOf(PartOf(result, begin, theirs.bytes()), source.rank,
                       static_cast<int32_t>(theirs.data_tag)));
    begin += theirs.bytes();
  }
  for (const Neighbor& destination : table_->destinations()) {
    if (!Moves(destination.rank.value(), outcome) || mine_.bytes() == 0) continue;
    moves = true;
    call.Launch(SendOf(BytesOf(input_), destination.rank, place_.data_tag));
  }
  // The memory stays until the end of the second job, which outlives the first one's references.
  call.Finally([input = input_, result = outcome.result] {});
  return moves;
}

RankGather::RankGather(const Place& place, at::Tensor input)
    : place_(place),
      input_(std::move(input)),
      mine_(ShapeMessage::Of(input_)),
      shapes_(static_cast<size_t>(place.world_size)) {}

lane::Job::Launch RankGather::Shapes() {
  const Tensor all{shapes_.data(), shapes_.size() * ShapeMessage::kWords, DType::kInt64};
  return LaunchOf({.kind = OperationKind::kAllGather,
                   .source = mine_.flat(),
                   .target = all,
                   .bucket = place_.bucket},
                  std::nullopt);
}

std::string RankGather::Difference() const {
  for (size_t r = 1; r < shapes_.size(); ++r) {
    if (shapes_[r].FitsTo(shapes_[0])) continue;
    return DifferenceOf(shapes_[0], 0, shapes_[r], static_cast<int>(r));
  }
  return "";
}

std::vector<lane::Job::Launch> RankGather::Parts(Outcome& outcome) const {
  if (std::string difference = Difference(); !difference.empty()) {
    outcome.failure = absl::InvalidArgumentError(absl::StrCat("allgather: ", difference));
    return {};
  }
  int64_t total = 0;
  bool are_alike = true;
  for (const ShapeMessage& shape : shapes_) {
    total += shape.first();
    are_alike = are_alike && shape.first() == mine_.first();
  }
  outcome.result = EmptyGathered(input_, total);
  if (outcome.result.nbytes() == 0) return {};
  if (!are_alike) return Broadcasts(outcome.result);
  std::vector<lane::Job::Launch> launches;
  launches.push_back(LaunchOf({.kind = OperationKind::kAllGather,
                               .source = BytesOf(input_),
                               .target = BytesOf(outcome.result),
                               .bucket = place_.bucket},
                              place_.on_stream));
  return launches;
}

std::vector<lane::Job::Launch> RankGather::Broadcasts(const at::Tensor& result) const {
  std::vector<lane::Job::Launch> launches;
  int64_t begin = 0;
  for (size_t r = 0; r < shapes_.size(); ++r) {
    const at::Tensor part_of_rank = result.narrow(0, begin, shapes_[r].first());
    begin += shapes_[r].first();
    if (part_of_rank.numel() == 0) continue;
    const Rank root(static_cast<int32_t>(r));
    if (root.value() == place_.rank) part_of_rank.copy_(input_);
    launches.push_back(LaunchOf({.kind = OperationKind::kBroadcast,
                                 .target = BytesOf(part_of_rank),
                                 .root = root,
                                 .bucket = place_.bucket},
                                place_.on_stream));
  }
  return launches;
}

}  // namespace pelton::torch_bindings
