#include "comm/tiers.h"

#include <algorithm>

#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Completions that are remembered before those that are done are looked for among them.
constexpr size_t kMostRemembered = 4 * limits::kMaxOperationsInFlight;

}  // namespace

TieredRunner::TieredRunner(const Tiers& tiers) {
  Add(tiers.all, {});
  Add(tiers.host, tiers.host_ranks);
  Add(tiers.leaders, tiers.leader_ranks);
}

void TieredRunner::Add(Communicator* tier, const std::vector<Rank>& ranks) {
  if (tier == nullptr) return;
  tiers_.push_back(tier);
  ranks_.push_back(ranks);
}

size_t TieredRunner::IndexOf(const Operation& operation) const {
  for (size_t index = 0; index < tiers_.size(); ++index) {
    if (tiers_[index]->id() == operation.communicator) return index;
  }
  return 0;
}

Communicator& TieredRunner::TierOf(Completion completion) const {
  return *tiers_[completion.ticket % tiers_.size()];
}

Completion TieredRunner::OnTier(Completion completion) const {
  return {completion.ticket / tiers_.size()};
}

absl::StatusOr<Completion> TieredRunner::Launch(const Operation& operation, Stream& stream) {
  const size_t index = IndexOf(operation);
  ASSIGN_OR_RETURN(const Completion completion, tiers_[index]->Launch(operation, stream));
  ForgetDone();
  in_flight_.push_back({completion.ticket * tiers_.size() + index});
  return in_flight_.back();
}

void TieredRunner::ForgetDone() {
  while (!in_flight_.empty() && Query(in_flight_.front()).done) in_flight_.pop_front();
  // Behind one that takes long.
  if (in_flight_.size() < kMostRemembered) return;
  std::erase_if(in_flight_, [this](Completion completion) { return Query(completion).done; });
}

bool TieredRunner::Progress() {
  bool moved = false;
  for (Communicator* tier : tiers_) moved |= tier->Progress();
  return moved;
}

OperationRunner::State TieredRunner::Query(Completion completion) {
  return TierOf(completion).Query(OnTier(completion));
}

OperationRunner::State TieredRunner::Follow(Completion completion, Stream& stream) {
  return TierOf(completion).Follow(OnTier(completion), stream);
}

Communicator& TieredRunner::Busy() const {
  for (const Completion completion : in_flight_) {
    Communicator& tier = TierOf(completion);
    if (!tier.Query(OnTier(completion)).done) return tier;
  }
  return *tiers_.front();
}

void TieredRunner::Park(absl::Time until) { Busy().Park(until); }

void TieredRunner::Wake() {
  for (Communicator* tier : tiers_) tier->Wake();
}

void TieredRunner::Abort(const absl::Status& reason) {
  for (Communicator* tier : tiers_) tier->Abort(reason);
}

// By any thread: what has been launched is the launching thread's to read.
std::vector<Rank> TieredRunner::Missing() const {
  for (size_t index = 0; index < tiers_.size(); ++index) {
    std::vector<Rank> missing = tiers_[index]->Missing();
    if (missing.empty()) continue;
    const std::vector<Rank>& ranks = ranks_[index];
    if (ranks.empty()) return missing;
    for (Rank& rank : missing) rank = ranks[static_cast<size_t>(rank.value())];
    return missing;
  }
  return {};
}

absl::Status TieredRunner::Register(const Region& region) {
  for (Communicator* tier : tiers_) RETURN_IF_ERROR(tier->Register(region));
  return absl::OkStatus();
}

void TieredRunner::Deregister(RegionId region) {
  for (Communicator* tier : tiers_) tier->Deregister(region);
}

}  // namespace pelton
