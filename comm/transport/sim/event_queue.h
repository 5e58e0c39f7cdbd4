// What is still to happen in a simulated world, by time.
#ifndef PELTON_COMM_TRANSPORT_SIM_EVENT_QUEUE_H_
#define PELTON_COMM_TRANSPORT_SIM_EVENT_QUEUE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/ids.h"

namespace pelton {

class SimGroup;

// Threads: a value. Owns: nothing.
struct SimEvent {
  enum class Kind {
    kPost,        // the operation `ticket` of `rank` becomes known to the peers
    kCompletion,  // the operation `ticket` of `rank` is done, with `status`
    kNotice,      // `rank` learns that a peer ended the communicator, with `status`
  };
  Kind kind;
  SimGroup* group;
  Rank rank;
  uint64_t ticket = 0;
  absl::Status status;
};

// Events of the same time come out in the order in which they went in, so a run is repeatable.
// Threads: one at a time. Owns: the events.
class EventQueue {
 public:
  void Schedule(absl::Time at, SimEvent event);
  // Infinite if there is none.
  absl::Time NextTime() const { return heap_.empty() ? absl::InfiniteFuture() : heap_.front().at; }
  // The first event, if it is due at `now`.
  std::optional<SimEvent> PopDue(absl::Time now);
  // Forgets the events of a group that ends.
  void Cancel(const SimGroup* group);

 private:
  struct Entry {
    absl::Time at;
    uint64_t order;
    SimEvent event;
  };
  static bool IsLater(const Entry& a, const Entry& b);

  std::vector<Entry> heap_;
  uint64_t next_order_ = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_SIM_EVENT_QUEUE_H_
