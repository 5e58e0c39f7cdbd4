#include "comm/all_to_all_v.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "comm/tags.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Enough to hide a peer that is late, few enough that nobody is flooded.
constexpr size_t kStepsInFlight = 4;

struct Side {
  absl::string_view name;  // of the argument
  Tensor tensor;
  absl::Span<const TensorPart> parts;

  Tensor Part(size_t rank) const {
    const uint64_t offset_bytes = parts[rank].offset * SizeOf(tensor.dtype);
    std::byte* const data = static_cast<std::byte*>(tensor.data);
    return {data == nullptr ? nullptr : data + offset_bytes, parts[rank].count, tensor.dtype};
  }
};

absl::Status CheckSide(const Communicator& communicator, const Side& side) {
  const auto ranks = static_cast<size_t>(communicator.world_size().value());
  if (side.parts.size() != ranks) {
    return Refuse(communicator, absl::StrCat(side.name, "_parts: ", side.parts.size(),
                                             " parts for ", ranks, " ranks"));
  }
  RETURN_IF_ERROR(CheckData(communicator, side.name, side.tensor));
  for (size_t i = 0; i < ranks; ++i) {
    const auto [offset, count] = side.parts[i];
    if (count > side.tensor.count || offset > side.tensor.count - count) {
      return Refuse(communicator,
                    absl::StrCat(side.name, "_parts[", i, "]: ", count, " elements at ", offset,
                                 " are not inside of the tensor's ", side.tensor.count));
    }
  }
  return absl::OkStatus();
}

// Receiving two parts into one place would leave either, by chance.
absl::Status CheckApart(const Communicator& communicator, const Side& target) {
  std::vector<size_t> order;
  for (size_t i = 0; i < target.parts.size(); ++i) {
    if (target.parts[i].count > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return target.parts[a].offset < target.parts[b].offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorPart& before = target.parts[order[i - 1]];
    if (before.offset + before.count > target.parts[order[i]].offset) {
      return Refuse(communicator,
                    absl::StrCat("target_parts[", order[i - 1], "] and [", order[i],
                                 "] overlap at element ", target.parts[order[i]].offset));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const Communicator& communicator, const Side& source, const Side& target) {
  RETURN_IF_ERROR(CheckDTypes(communicator, source.tensor, target.tensor));
  RETURN_IF_ERROR(CheckSide(communicator, source));
  RETURN_IF_ERROR(CheckSide(communicator, target));
  const auto self = static_cast<size_t>(communicator.rank().value());
  if (source.parts[self].count != target.parts[self].count) {
    return Refuse(communicator, absl::StrCat("source_parts[", self, "]: ", source.parts[self].count,
                                             " elements to the rank itself, target_parts[", self,
                                             "]: ", target.parts[self].count));
  }
  return CheckApart(communicator, target);
}

// The messages of one call. Threads: one. Owns: nothing; the tensors are the communicator's until
// Drain has returned (OWN-1).
class Exchange {
 public:
  Exchange(Communicator& communicator, absl::Time deadline, const Standstill* standstill)
      : communicator_(communicator), deadline_(deadline), standstill_(standstill) {}

  // Both must be launched even if one is empty, so that a peer that expects more is told.
  absl::Status LaunchStep(Tensor source, Rank destination, Tensor target, Rank origin) {
    ASSIGN_OR_RETURN(const Completion send,
                     Send(communicator_, source, destination, kAllToAllVTag));
    in_flight_.push_back(send);
    ASSIGN_OR_RETURN(const Completion recv, Recv(communicator_, target, origin, kAllToAllVTag));
    in_flight_.push_back(recv);
    return absl::OkStatus();
  }

  // Waits until at most `count` messages are in flight; keeps the first error.
  void DrainTo(size_t count) {
    while (in_flight_.size() > count) {
      status_.Update(Await(communicator_, in_flight_.front(), deadline_, standstill_));
      in_flight_.pop_front();
    }
  }

  // Ends everything: the peers wait for messages that will not come.
  void Fail(const absl::Status& reason) {
    status_.Update(reason);
    communicator_.Abort(reason);
  }

  // Sizes of a pair that differ end that pair; the others go on.
  bool can_go_on() const { return status_.ok() || absl::IsInvalidArgument(status_); }
  const absl::Status& status() const { return status_; }

 private:
  Communicator& communicator_;
  const absl::Time deadline_;
  const Standstill* const standstill_;
  std::deque<Completion> in_flight_;
  absl::Status status_;
};

void CopyOwn(const Tensor& source, const Tensor& target) {
  if (source.count > 0) std::memcpy(target.data, source.data, source.count * SizeOf(source.dtype));
}

}  // namespace

absl::Status AllToAllV(Communicator& communicator, Tensor source,
                       absl::Span<const TensorPart> source_parts, Tensor target,
                       absl::Span<const TensorPart> target_parts, absl::Time deadline,
                       const Standstill* standstill) {
  const Side from{"source", source, source_parts};
  const Side to{"target", target, target_parts};
  RETURN_IF_ERROR(Check(communicator, from, to));
  const auto ranks = static_cast<size_t>(communicator.world_size().value());
  const auto self = static_cast<size_t>(communicator.rank().value());
  const auto rank_of = [](size_t i) { return Rank(static_cast<int32_t>(i)); };
  Exchange exchange(communicator, deadline, standstill);
  for (size_t step = 1; step < ranks && exchange.can_go_on(); ++step) {
    const size_t destination = (self + step) % ranks;
    const size_t origin = (self + ranks - step) % ranks;
    const absl::Status launched = exchange.LaunchStep(from.Part(destination), rank_of(destination),
                                                      to.Part(origin), rank_of(origin));
    if (!launched.ok()) exchange.Fail(launched);
    exchange.DrainTo(2 * (kStepsInFlight - 1));
  }
  CopyOwn(from.Part(self), to.Part(self));
  exchange.DrainTo(0);
  return exchange.status();
}

}  // namespace pelton
