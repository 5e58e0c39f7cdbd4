// The model of the wires between the simulated ranks: how long bytes take, and how many went where.
#ifndef PELTON_COMM_TRANSPORT_SIM_NETWORK_H_
#define PELTON_COMM_TRANSPORT_SIM_NETWORK_H_

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/ids.h"

namespace pelton {

class SimGroup;

// What is still to happen in a simulated world, by time.

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
  void Add(absl::Time at, SimEvent event);
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

// One direction between two ranks. Threads: a value. Owns: nothing.
struct LinkModel {
  absl::Duration latency = absl::ZeroDuration();
  double bytes_per_second = 0;                   // 0: bytes take no time
  absl::Duration jitter = absl::ZeroDuration();  // adds [0, jitter) to each latency, from the seed
};

// From one rank of the world to another. Threads: a value. Owns: nothing.
struct Link {
  Rank from;
  Rank to;
};

// A link carries one transfer after the other and delivers them in that order, as a connection
// does; different links are independent. Threads: one at a time. Owns: the state of the links that
// were used or set; the others, of which a large world has n * n, take no memory.
class Network {
 public:
  Network(WorldSize world_size, const LinkModel& model, uint64_t seed);

  // From when on a transfer's memory is free again at the sender, and is there at the receiver.
  struct Times {
    absl::Time left;
    absl::Time arrived;
  };
  // Books `bytes` that are ready to leave at `ready`. Nothing is booked, and no time passes, from
  // a rank to itself.
  Times Transfer(Link link, uint64_t bytes, absl::Time ready);

  // When a short notice that is sent at `now` is received: it overtakes the transfers.
  absl::Time NoticeTime(Link link, absl::Time now) const;

  void SetModel(Link link, const LinkModel& model) { At(link).model = model; }
  // Adds to the latency of all later transfers.
  void Delay(Link link, absl::Duration extra) { At(link).model.latency += extra; }

  // Units: bytes of all transfers so far.
  uint64_t BytesSent(Link link) const { return At(link).bytes; }
  uint64_t TotalBytesSent() const;

 private:
  struct LinkState {
    LinkModel model;
    absl::Time free_at = absl::InfinitePast();
    absl::Time last_arrival = absl::InfinitePast();
    uint64_t bytes = 0;
  };
  LinkState& At(Link link) { return links_.try_emplace(IndexOf(link), unused_).first->second; }
  const LinkState& At(Link link) const;
  uint64_t IndexOf(Link link) const;
  absl::Duration Jitter(absl::Duration bound);

  const int32_t world_size_;
  const LinkState unused_;
  absl::flat_hash_map<uint64_t, LinkState> links_;  // by from * world size + to
  std::mt19937_64 random_;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_SIM_NETWORK_H_
