#include "core/pipeline/completion_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace pelton {
namespace {

constexpr size_t kFirstSlots = 16;  // a power of two, as all sizes

absl::Status Unknown(uint64_t ticket, uint64_t launched) {
  return absl::OutOfRangeError(absl::StrCat(
      "completion: ticket ", ticket, " is none of this communicator's, which are 1 to ", launched));
}

}  // namespace

CompletionTable::CompletionTable() : slots_(kFirstSlots) {}

CompletionTable::Entry CompletionTable::Begin() {
  PELTON_CHECK(has_room());
  if (2 * (in_flight_ + 1) > slots_.size()) {
    std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    for (const Slot& slot : before) {
      if (slot.ticket != 0) Insert(slot);
    }
  }
  size_t place = in_flight_;  // as many as were ever in use at a time
  if (!free_.empty()) {
    place = free_.back();
    free_.pop_back();
  }
  ++in_flight_;
  Insert({++launched_, place});
  return {{launched_}, place};
}

void CompletionTable::Insert(Slot slot) {
  size_t index = Home(slot.ticket);
  while (slots_[index].ticket != 0) index = Home(index + 1);
  slots_[index] = slot;
}

size_t CompletionTable::SlotOf(uint64_t ticket) const {
  for (size_t index = Home(ticket); slots_[index].ticket != 0; index = Home(index + 1)) {
    if (slots_[index].ticket == ticket) return index;
  }
  return slots_.size();
}

size_t CompletionTable::PlaceOf(uint64_t ticket) const {
  const size_t index = SlotOf(ticket);
  return index == slots_.size() ? kNoPlace : slots_[index].place;
}

// What lies behind it moves up, unless that would bring it before its home.
void CompletionTable::Erase(size_t hole) {
  for (size_t next = Home(hole + 1); slots_[next].ticket != 0; next = Home(next + 1)) {
    const size_t from_home = Home(next - Home(slots_[next].ticket));
    if (from_home < Home(next - hole)) continue;
    slots_[hole] = slots_[next];
    hole = next;
  }
  slots_[hole] = Slot{};
}

void CompletionTable::End(uint64_t ticket, const absl::Status& status) {
  const size_t index = SlotOf(ticket);
  PELTON_CHECK(index < slots_.size()) << "ticket " << ticket << " is not in flight";
  free_.push_back(slots_[index].place);
  Erase(index);
  --in_flight_;
  if (!status.ok()) Remember(ticket, status);
}

void CompletionTable::EndAll(const absl::Status& status) {
  std::vector<uint64_t> tickets;
  for (const Slot& slot : slots_) {
    if (slot.ticket != 0) tickets.push_back(slot.ticket);
  }
  std::sort(tickets.begin(), tickets.end());
  for (const uint64_t ticket : tickets) End(ticket, status);
}

void CompletionTable::Remember(uint64_t ticket, const absl::Status& failure) {
  failures_[ticket] = failure;
  if (failures_.size() <= kMaxFailures) return;
  forgotten_ = std::max(forgotten_, failures_.begin()->first);
  failures_.erase(failures_.begin());
}

uint64_t CompletionTable::oldest() const {
  uint64_t oldest = 0;
  for (const Slot& slot : slots_) {
    if (slot.ticket != 0 && (oldest == 0 || slot.ticket < oldest)) oldest = slot.ticket;
  }
  return oldest;
}

OperationRunner::State CompletionTable::Query(Completion completion) const {
  const uint64_t ticket = completion.ticket;
  if (SlotOf(ticket) < slots_.size()) return {};
  if (ticket == 0 || ticket > launched_) return {true, Unknown(ticket, launched_)};
  if (failures_.empty()) return {true, absl::OkStatus()};
  const auto failed = failures_.find(ticket);
  if (failed != failures_.end()) return {true, failed->second};
  if (ticket > forgotten_) return {true, absl::OkStatus()};
  return {true, absl::OutOfRangeError(absl::StrCat(
                    "completion: ticket ", ticket, " was asked for after ", kMaxFailures,
                    " later operations had failed: how it ended is not known any more"))};
}

}  // namespace pelton
