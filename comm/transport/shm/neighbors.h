// Neighbour operations of one host: messages in queues of their own, read where their senders have
// them.
#ifndef PELTON_COMM_TRANSPORT_SHM_NEIGHBORS_H_
#define PELTON_COMM_TRANSPORT_SHM_NEIGHBORS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/reduction/linear_combination.h"
#include "comm/transport/operation_check.h"
#include "comm/transport/shm/context.h"
#include "comm/transport/shm/edge_queue.h"
#include "comm/transport/shm/neighbor_flight.h"
#include "core/pipeline/operation.h"

namespace pelton::shm {

// Runs a communicator's neighbour operations, all that are in flight side by side (EDGE-1). Of
// each:
//
//   post     the tensor, or where it lies, with the weight, into the queue to each destination
//   come     wait for the messages of the sources, which are taken out of their queues as they come
//   read     combine the sources' tensors piece by piece, or copy them one after the other
//   answer   to those sources that wait for it, then wait for the destinations that answer
//
// A destination answers where it reads this rank's memory, and where it sends this rank nothing, so
// that this rank learns of a difference: an edge that goes both ways needs no answer, because each
// end sees the other's message. A target may have been written when such an answer says that the
// tensors differ. In place a piece is written once all destinations have read it;
// until then it is kept aside.
//
// Threads: one at a time; oldest_peer() by any. Owns: its ends of the queues, and copies of private
// memory that a destination cannot read.
class Neighbors {
 public:
  // Called for each operation that ends, with its ticket.
  using OnDone = absl::FunctionRef<void(uint64_t ticket, const absl::Status& status)>;

  explicit Neighbors(const Context& context);
  ~Neighbors();

  bool is_idle() const { return flights_.empty(); }
  // Errors: ResourceExhausted: no memory for a copy.
  absl::Status Start(const Operation& operation, uint64_t ticket, NeighborOperation checked);
  // Advances all by a bounded amount; true if anything moved. Errors: those that must abort the
  // communicator.
  absl::StatusOr<bool> Step(OnDone on_done);
  // Drops all. Requires: no peer reads or will read this rank's memory (OWN-1).
  void Cancel();

  // Whether one in flight waits for `peer`.
  bool Needs(int peer) const;
  // One that the oldest one in flight waits for, or kNoPeer.
  int oldest_peer() const { return oldest_peer_.load(std::memory_order_relaxed); }

 private:
  enum class Outcome : uint8_t { kWaiting, kMoved, kDone };

  using Flight = NeighborFlight;
  using Phase = NeighborFlight::Phase;
  struct Expected {
    int32_t tag;
    Flight* flight;
    size_t source;
  };
  using FlightPointer = std::unique_ptr<Flight>;

  FlightPointer TakeFlight();
  absl::Status CopyIfUnreadable(Flight& flight);
  void Expect(Flight& flight);
  bool TakePosts();
  bool Match(int peer, const EdgeMessage& message);

  Outcome Post(Flight& flight);
  absl::StatusOr<Outcome> Advance(Flight& flight);
  absl::StatusOr<Outcome> ReachAll(Flight& flight);
  absl::StatusOr<Outcome> Read(Flight& flight);
  static bool MayRead(const Reading& reading, const Flight& flight);
  const std::byte* DataOf(const Incoming& incoming) const;
  absl::StatusOr<bool> CombinePiece(Flight& flight);
  absl::Status Combine(Flight& flight, uint64_t size_bytes);
  std::byte* PlaceOf(Flight& flight, uint64_t size_bytes) const;
  bool WriteBack(Flight& flight) const;
  bool IsReadBelow(const Flight& flight, uint64_t end) const;
  absl::StatusOr<bool> GatherPiece(Flight& flight);
  void AnswerAll(Flight& flight);
  Outcome TakeAnswers(Flight& flight);
  void End(Flight& flight, OnDone on_done);
  void TakeBackCopy(Flight& flight) const;
  void NoteOldest();

  const Context& context_;
  std::vector<EdgeSender> senders_;              // to each peer
  std::vector<EdgeReceiver> receivers_;          // from each peer
  std::vector<std::vector<Expected>> expected_;  // of each peer, in launch order
  std::vector<std::vector<EdgeMessage>>
      unmatched_;                          // of each peer: taken out, for no operation yet
  std::vector<bool> is_blocked_;           // in this step: the queue to each peer is full
  std::vector<FlightPointer> flights_;     // in launch order
  std::vector<FlightPointer> idle_;        // the last one used last
  std::vector<const std::byte*> tensors_;  // of one combination
  std::vector<Term> terms_;
  std::atomic<int> oldest_peer_ = kNoPeer;
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_NEIGHBORS_H_
