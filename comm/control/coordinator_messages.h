// What goes into the coordinator's state machine and what comes out of it.
#ifndef PELTON_COMM_CONTROL_COORDINATOR_MESSAGES_H_
#define PELTON_COMM_CONTROL_COORDINATOR_MESSAGES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "core/base/ids.h"

namespace pelton {

// A call that waits for its reply; numbered by whoever feeds the state machine, never used twice.
struct Call {
  uint64_t id = 0;
  absl::Time now;       // when it arrived
  absl::Time deadline;  // when it is answered at the latest
};

// What a rank says of itself at regular intervals.
struct Beat {
  Round round;
  absl::Duration round_trip = absl::ZeroDuration();  // of an earlier beat and its echo
};

// Who sends: a rank of a job at a generation names one process (GEN-1).
struct Caller {
  std::string job;
  Rank rank;
  Generation generation;

  friend auto operator<=>(const Caller&, const Caller&) = default;
};

// The one answer to a call (ONCE-1). Threads: a value. Owns: its parts, but for the membership.
struct Reply {
  uint64_t call = 0;
  absl::Status status;
  ControlAnswer answer = {};  // to a question, where the status is OK
  // Of a join. Shared by the replies to all ranks: a copy each would take the square of the world's
  // size.
  std::shared_ptr<const Membership> membership = nullptr;
};

struct AddressedOrder {
  Caller to;
  Order order;
};

// A heartbeat stream to be ended: the rank left (OK), or was given up and gets the status as its
// last order.
struct EndedStream {
  Caller rank;
  absl::Status status;
};

// Effects of one event, in order. Threads: a value. Owns: its lists.
struct Outbox {
  std::vector<Reply> replies;
  std::vector<AddressedOrder> orders;
  std::vector<EndedStream> ended_streams;

  void Answer(uint64_t call, absl::StatusOr<ControlAnswer> answer) {
    replies.push_back({.call = call, .status = answer.status()});
    if (answer.ok()) replies.back().answer = *std::move(answer);
  }
};

// For error messages: quoted, shortened, and with bytes that are no text escaped.
std::string Quote(absl::string_view name);
// "4.9s", rounded: what was waited for, not what was measured.
std::string FormatTimeout(absl::Duration timeout);
// "0, 2, 5", the first few only of a long list.
std::string ListRanks(const std::vector<Rank>& ranks);

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

#endif  // PELTON_COMM_CONTROL_COORDINATOR_MESSAGES_H_
