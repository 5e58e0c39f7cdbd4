#include "torch_bindings/csrc/neighbor_gather.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "torch_bindings/csrc/status_to_exception.h"

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
    launches.push_back(
        [peer = Rank(rank), target = theirs.flat(), tag = place_.tag](Communicator& communicator) {
          return Recv(communicator, target, peer, tag);
        });
    launches.push_back(
        [peer = Rank(rank), source = mine_.flat(), tag = place_.tag](Communicator& communicator) {
          return Send(communicator, source, peer, tag);
        });
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
    call.Launch([peer = source.rank, target = PartOf(result, begin, theirs.bytes()),
                 tag = static_cast<int32_t>(theirs.data_tag)](Communicator& communicator) {
      return Recv(communicator, target, peer, tag);
    });
    begin += theirs.bytes();
  }
  for (const Neighbor& destination : table_->destinations()) {
    if (!Moves(destination.rank.value(), outcome) || mine_.bytes() == 0) continue;
    moves = true;
    call.Launch([peer = destination.rank, source = BytesOf(input_), tag = place_.data_tag](
                    Communicator& communicator) { return Send(communicator, source, peer, tag); });
  }
  // The memory stays until the end of the second job, which outlives the first one's references.
  call.Finally([input = input_, result = outcome.result] {});
  return moves;
}

}  // namespace pelton::torch_bindings
