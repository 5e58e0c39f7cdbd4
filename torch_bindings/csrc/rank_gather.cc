#include "torch_bindings/csrc/rank_gather.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/collectives.h"

namespace pelton::torch_bindings {

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
                   .count = ShapeMessage::kWords,
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
                               .count = mine_.bytes(),
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
    const int32_t root = static_cast<int32_t>(r);
    if (root == place_.rank) part_of_rank.copy_(input_);
    const Tensor part = BytesOf(part_of_rank);
    launches.push_back(LaunchOf({.kind = OperationKind::kBroadcast,
                                 .source = part,
                                 .target = part,
                                 .count = part.count,
                                 .bucket = place_.bucket,
                                 .root = root},
                                place_.on_stream));
  }
  return launches;
}

}  // namespace pelton::torch_bindings
