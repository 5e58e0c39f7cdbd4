// What became of a runner's launches, by ticket: the one place of this for every transport.
#ifndef PELTON_CORE_PIPELINE_COMPLETION_TABLE_H_
#define PELTON_CORE_PIPELINE_COMPLETION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "core/base/limits.h"
#include "core/pipeline/operation_runner.h"

namespace pelton {

// Gives tickets out and answers for all of them, for ever: for one in flight because it is looked
// up, for one that failed because failures are kept, and for any other because it has ended well.
// So one operation that takes long stops nothing, however many are launched after it; only how many
// are in flight at a time is bounded.
//
// Each operation in flight has a place, a number below kPlaces that no other one has until it ends,
// for the runner's own records. Places are taken from a free list, the last one freed first.
// Threads: one at a time. Owns: tickets and statuses.
class CompletionTable {
 public:
  static constexpr size_t kPlaces = limits::kMaxOperationsInFlight;
  static constexpr size_t kNoPlace = kPlaces;
  // Failures that are kept; an older ticket's outcome is then unknown, and said to be.
  static constexpr size_t kMaxFailures = 4 * kPlaces;

  struct Entry {
    Completion completion;
    size_t place = kNoPlace;
  };

  CompletionTable();

  bool has_room() const { return in_flight_ < kPlaces; }
  size_t in_flight() const { return in_flight_; }
  uint64_t launched() const { return launched_; }  // the newest ticket

  // The next ticket, now in flight. Requires: has_room().
  Entry Begin();
  // Where it is; kNoPlace if it is not in flight.
  size_t PlaceOf(uint64_t ticket) const;
  // Ends an operation in flight; its place is free.
  void End(uint64_t ticket, const absl::Status& status);
  // Ends all that is in flight.
  void EndAll(const absl::Status& status);
  // The oldest one in flight; 0: there is none. Looks at all.
  uint64_t oldest() const;

  OperationRunner::State Query(Completion completion) const;

 private:
  struct Slot {
    uint64_t ticket = 0;  // 0: empty
    size_t place = 0;
  };

  size_t Home(uint64_t ticket) const { return ticket & (slots_.size() - 1); }
  size_t SlotOf(uint64_t ticket) const;  // slots_.size(): none
  void Insert(Slot slot);
  void Erase(size_t index);
  void Remember(uint64_t ticket, const absl::Status& failure);

  // A hash table with linear probing, at most half full: tickets are numbered through, so that the
  // first look almost always finds.
  std::vector<Slot> slots_;
  std::vector<size_t> free_;  // places that were in use before
  size_t in_flight_ = 0;
  uint64_t launched_ = 0;
  std::map<uint64_t, absl::Status> failures_;
  uint64_t forgotten_ = 0;  // the newest failure that is not kept any more
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_COMPLETION_TABLE_H_
