#include "comm/hierarchy/roll_call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/hierarchy/tags.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "core/memory/stream.h"

namespace pelton::hierarchy {
namespace {

constexpr size_t kMaxMessages = 128;  // in flight

}  // namespace

RollCall::RollCall(OperationRunner& runner, Rank rank, WorldSize world_size)
    : runner_(runner), rank_(rank), posts_(world_size.value()) {}

void RollCall::Start(const Operation& mine) {
  Operation& post = posts_[rank_.value()];
  post = mine;
  post.set_source({});  // addresses are nobody else's business
  post.set_target({});
  next_launch_ = 0;
}

absl::Status RollCall::Launch(OperationKind kind, Rank peer, Operation* memory) {
  Operation message;
  message.kind = kind;
  message.dtype = DType::kUInt8;
  message.count = sizeof(Operation);
  message.peer = peer.value();
  message.tag = kRollCallTag;
  const Location location = Locate(memory, sizeof(Operation));
  message.set_source(location);
  message.set_target(location);
  HostStream stream;
  ASSIGN_OR_RETURN(const Completion completion, runner_.Launch(message, stream));
  const bool is_recv = kind == OperationKind::kRecv;
  in_flight_.push_back({completion, is_recv ? peer.value() : kNoPeer});
  moved_ = true;
  return absl::OkStatus();
}

// Step k is a message to the k-th rank after this one and one from the k-th before it: the two ends
// of a message are launched in the same step, so that a bound on their number is no deadlock.
absl::Status RollCall::LaunchRest() {
  const auto size = static_cast<int32_t>(posts_.size());
  for (; next_launch_ < 2 * size && in_flight_.size() < kMaxMessages; ++next_launch_) {
    const int32_t step = next_launch_ / 2;
    if (step == 0) continue;
    const Rank next((rank_.value() + step) % size);
    const Rank previous((rank_.value() + size - step) % size);
    const bool sends = next_launch_ % 2 == 0;
    const absl::Status launched =
        sends ? Launch(OperationKind::kSend, next, &posts_[rank_.value()])
              : Launch(OperationKind::kRecv, previous, &posts_[previous.value()]);
    if (absl::IsResourceExhausted(launched)) return absl::OkStatus();
    RETURN_IF_ERROR(launched);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RollCall::Advance() {
  moved_ = false;
  RETURN_IF_ERROR(LaunchRest());
  for (size_t i = 0; i < in_flight_.size();) {
    const OperationRunner::State state = runner_.Query(in_flight_[i].completion);
    RETURN_IF_ERROR(state.status);
    if (!state.done) {
      ++i;
      continue;
    }
    in_flight_[i] = in_flight_.back();
    in_flight_.pop_back();
    moved_ = true;
  }
  return in_flight_.empty() && next_launch_ == 2 * static_cast<int32_t>(posts_.size());
}

absl::Status RollCall::Difference() const {
  for (size_t rank = 1; rank < posts_.size(); ++rank) {
    const std::string difference =
        DifferenceOf(posts_[0], Rank(0), posts_[rank], Rank(static_cast<int32_t>(rank)));
    if (difference.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(Describe(posts_[0]), ": ", difference));
  }
  return absl::OkStatus();
}

// Those that were asked: of the others nothing is known while more are late than may be waited for.
std::vector<Rank> RollCall::Missing() const {
  std::vector<Rank> missing;
  for (const Flight& flight : in_flight_) {
    if (flight.sender != kNoPeer) missing.emplace_back(flight.sender);
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

}  // namespace pelton::hierarchy
