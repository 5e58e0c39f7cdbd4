#include "comm/transport/shm/abort.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"

namespace pelton::shm {
namespace {

// A peer that was stopped in the middle of a write must not hold up the others for longer. What one
// task writes takes a small part of that.
constexpr absl::Duration kGrace = absl::Seconds(1);

}  // namespace

// Why no abort is lost. The first one to begin writes the reason and finishes; all others leave the
// record as it is. A rank that sleeps, or is about to, is woken: it has read its doorbell before it
// looked at the state, and the doorbell is rung here after the state was stored, whether it says
// that it is parked or not. So it saw the state, or its futex finds another doorbell. The same
// holds for a rank that looked before the reason was there, because the doorbells come after that.
// A writer that dies in between leaves a reason that never comes: the transport notices the death
// and throws here on each survivor, which then reports its own reason (Reason) and rings again.
// doorbell_model_test.cc runs this in every order.
void AbortSwitch::Throw(const absl::Status& reason, bool is_death) {
  own_reason_.Give(reason);
  AbortRecord& record = context_.arena.header().abort;
  if (record.state.Begin()) {
    record.code = static_cast<int32_t>(reason.code());
    record.is_death = is_death;
    record.rank = context_.world_ranks[context_.rank];
    const absl::string_view text = reason.message();
    const size_t length = std::min(text.size(), sizeof record.text - 1);
    std::memcpy(record.text, text.data(), length);
    record.text[length] = 0;
    record.state.Finish();
  }
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    context_.arena.rank(peer).doorbell.RingAlways();
  }
}

std::optional<absl::Status> AbortSwitch::Reason() const {
  const AbortRecord& record = context_.arena.header().abort;
  const absl::Status own = own_reason_.Get();
  if (!record.state.is_ready()) {
    // Its writer may never come back.
    if (own.ok()) return std::nullopt;
    return own;
  }
  if (record.rank == context_.world_ranks[context_.rank] && !own.ok()) return own;
  const std::string text(record.text, strnlen(record.text, sizeof record.text));
  const auto code = static_cast<absl::StatusCode>(record.code);
  if (record.is_death) return absl::Status(code, text);
  return absl::Status(code, absl::StrCat("rank ", record.rank, " aborted: ", text));
}

bool AbortSwitch::IsDeath() const {
  const AbortRecord& record = context_.arena.header().abort;
  return record.state.is_ready() && record.is_death != 0;
}

AbortSwitch::Peers AbortSwitch::CloseMemory() {
  const absl::Time now = Clock::Real().Now();
  if (!since_) since_ = now;
  context_.arena.rank(context_.rank).gate.Close();
  const bool has_grace = now - *since_ <= kGrace;
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    const uint32_t busy = context_.arena.rank(peer).gate.busy();
    if (peer == context_.rank || busy == MemoryGate::kIdle) continue;
    if (busy == MemoryGate::kReading && !has_grace) continue;
    if (!context_.links.LossOf(context_.world_ranks[peer]).ok()) continue;
    return has_grace ? Peers::kBusy : Peers::kStopped;
  }
  return Peers::kQuiet;
}

}  // namespace pelton::shm
