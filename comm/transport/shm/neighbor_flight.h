// One neighbour operation in flight: what it sends, what it expects, and how far it is.
#ifndef PELTON_COMM_TRANSPORT_SHM_NEIGHBOR_FLIGHT_H_
#define PELTON_COMM_TRANSPORT_SHM_NEIGHBOR_FLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/operation_check.h"
#include "comm/transport/shm/context.h"
#include "comm/transport/shm/edge_queue.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"

namespace pelton::shm {

// What comes from a source. Threads: a value. Owns: its hold on the source's memory.
struct Incoming {
  int peer = 0;
  uint64_t count = 0;  // as this rank expects it
  bool has_come = false;
  bool differs = false;
  EdgeMessage message;
  Reach reach;  // kInMemory
};

// What goes to a destination. Threads: a value. Owns: nothing.
struct Outgoing {
  int peer = 0;
  double weight = 1;
  bool waits = false;  // for an answer
  bool is_posted = false;
  bool is_answered = false;
  uint8_t entry = 0;  // in the queue, if it waits
};

// Used for one operation after the other, because of its lists' memory.
// Threads: one at a time. Owns: its share of the table, its scratch memory, and the copy.
struct NeighborFlight {
  // kCome: waits for the sources' messages. kReach: and for the regions that they name.
  enum class Phase : uint8_t { kPost, kCome, kReach, kRead, kAnswers };

  uint64_t ticket = 0;
  Phase phase = Phase::kPost;
  Operation operation;
  NeighborOperation checked;
  uint64_t size_bytes = 0;  // of this rank's tensor
  std::vector<Incoming> incoming;
  std::vector<Outgoing> outgoing;
  std::vector<double> factors;  // the own one, then the sources'
  size_t come = 0;              // messages of sources
  bool reads_memory = false;    // of a source
  bool is_staged = false;       // destinations read what is to be replaced
  absl::Status difference;
  size_t gathered = 0;            // sources that are read, of a gather
  uint64_t gathered_place = 0;    // where the next one's tensor goes. Units: bytes
  uint64_t read_bytes = 0;        // of each source's tensor, or of the one that is being gathered
  uint64_t written_bytes = 0;     // out of `staged`
  std::unique_ptr<Region> copy;   // of private memory that a destination cannot read
  std::vector<std::byte> staged;  // pieces, as a ring
  std::vector<std::byte> pieces;  // of sources' private memory

  bool combines() const { return operation.kind == OperationKind::kNeighborAllReduce; }
  bool is_read() const {
    return combines() ? read_bytes == size_bytes : gathered == incoming.size();
  }
  // What is read in one step of each tensor of a combination.
  uint64_t piece_bytes() const;

  // Takes up `begun`.
  void Begin(const Operation& begun, NeighborOperation its);
  // To any destination, but for the weight.
  EdgeMessage Message() const;
  void Meet(size_t source, const EdgeMessage& message);
  // Holds each source's message against what this rank expects, and multiplies the weights in that
  // came. What does not fit is the operation's error.
  void Compare(int rank);
  // This rank's part in the message, as a receive.
  Operation Receive(const Incoming& from) const;
  // Notes that the destination `to` has found a difference between the message and `reply`.
  void Differs(const Outgoing& to, const Operation& reply, int rank);

  // Whether it waits for `peer`.
  bool Needs(int peer) const;
  // One of those that it waits for, or kNoPeer.
  int awaited() const;
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_NEIGHBOR_FLIGHT_H_
