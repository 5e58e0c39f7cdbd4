// Which of the calls that wait is due first.
#ifndef PELTON_COMM_CONTROL_DEADLINE_QUEUE_H_
#define PELTON_COMM_CONTROL_DEADLINE_QUEUE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "absl/time/time.h"

namespace pelton {

// Threads: one at a time. Owns: its entries.
class DeadlineQueue {
 public:
  void Add(uint64_t call, absl::Time deadline) { entries_.emplace(deadline, call); }
  void Remove(uint64_t call, absl::Time deadline) { entries_.erase({deadline, call}); }
  // InfiniteFuture when empty.
  absl::Time Next() const {
    return entries_.empty() ? absl::InfiniteFuture() : entries_.begin()->first;
  }
  // The first call that is due at `now`; it stays in the queue.
  std::optional<uint64_t> Due(absl::Time now) const {
    if (Next() > now || entries_.empty()) return std::nullopt;
    return entries_.begin()->second;
  }

 private:
  std::set<std::pair<absl::Time, uint64_t>> entries_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_DEADLINE_QUEUE_H_
