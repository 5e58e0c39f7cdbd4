#include "comm/tiers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

TieredRunner::TieredRunner(const Tiers& tiers) {
  for (Communicator* tier : {tiers.all, tiers.host, tiers.leaders}) {
    if (tier != nullptr) tiers_.push_back(tier);
  }
}

Communicator& TieredRunner::TierOf(const Operation& operation) const {
  for (Communicator* tier : tiers_) {
    if (tier->id() == operation.communicator) return *tier;
  }
  return *tiers_.front();
}

absl::StatusOr<Completion> TieredRunner::Launch(const Operation& operation, Stream& stream) {
  Launched& place = launched_[(last_ticket_ + 1) % launched_.size()];
  // What it would push out of the ring must not be open: nobody could ask for it any more.
  if (place.communicator != nullptr && !place.communicator->Query(place.completion).done) {
    return absl::ResourceExhaustedError(
        absl::StrCat(launched_.size(), " operations are in flight already"));
  }
  Communicator& tier = TierOf(operation);
  ASSIGN_OR_RETURN(const Completion completion, tier.Launch(operation, stream));
  place = {&tier, completion};
  return Completion{++last_ticket_};
}

bool TieredRunner::Progress() {
  bool moved = false;
  for (Communicator* tier : tiers_) moved |= tier->Progress();
  return moved;
}

OperationRunner::State TieredRunner::Query(Completion completion) {
  const Launched& launched = launched_[completion.ticket % launched_.size()];
  return launched.communicator->Query(launched.completion);
}

OperationRunner::State TieredRunner::Follow(Completion completion, Stream& stream) {
  const Launched& launched = launched_[completion.ticket % launched_.size()];
  return launched.communicator->Follow(launched.completion, stream);
}

Communicator& TieredRunner::Busy() const {
  const uint64_t oldest = last_ticket_ < launched_.size() ? 1 : last_ticket_ - launched_.size() + 1;
  for (uint64_t ticket = oldest; ticket <= last_ticket_; ++ticket) {
    const Launched& launched = launched_[ticket % launched_.size()];
    if (!launched.communicator->Query(launched.completion).done) return *launched.communicator;
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
  for (const Communicator* tier : tiers_) {
    if (std::vector<Rank> missing = tier->Missing(); !missing.empty()) return missing;
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
