// Sends and receives: matched by peer and tag in launch order, on the receiving rank.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_POINT_TO_POINT_H_
#define PELTON_COMM_TRANSPORT_NETWORK_POINT_TO_POINT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/network/worker.h"
#include "core/pipeline/operation.h"

namespace pelton::network {

// Short messages go at once and wait at the receiver; the sender is done when they have left,
// as long as no more than kWindow of them are untaken at that peer: the receiver gives the room
// back by kCredit. Beyond that the sender waits for kAck, so that a receiver keeps at most the
// window and kMaxOperationsInFlight messages more from each peer. Long ones are fetched by the
// receiver straight into their target (rendezvous), and end with kAck, too: bytes that a slow link
// leaves with the sender move only while the sender makes progress, and it has no reason to once
// all its operations are done. The window is what the kernel takes at once.
//
// Threads: one at a time. Owns: the operations in flight and the payloads that nobody has asked
// for; the worker outlives it.
class PointToPoint {
 public:
  static constexpr size_t kEagerBytes = 8192;
  static constexpr size_t kWindowBytes = size_t{32} << 10;
  static constexpr uint64_t kWindowMessages = 64;

  PointToPoint(const Members& members, Worker& worker);

  // Whether another operation may be started.
  bool HasRoom() const { return completions_.has_room(); }
  // Starts `operation`, which was checked, on `memory`; gives its ticket. Errors: Unavailable: the
  // connection to the peer of a send is broken.
  absl::StatusOr<uint64_t> Start(const Operation& operation, std::byte* memory);
  OperationRunner::State Query(uint64_t ticket) const;

  // A peer with an unasked-for message of `tag`, in turn, or kNoPeer.
  int FindSender(int32_t tag);

  // A genuine kData. True keeps the payload.
  bool Arrive(const Header& header, const Payload& payload);
  // A genuine kCredit, kAck or kRefusal.
  void Answer(const Header& header);

  bool is_idle() const { return completions_.in_flight() == 0; }
  // Counts whatever was started, matched or ended.
  uint64_t events() const { return events_; }
  // The peer that has to act before the oldest operation in flight can end, or kNoPeer. It may have
  // launched its part: a link that was cut in the middle of a transfer is that peer's silence, too.
  int oldest_peer() const;
  // Whether an operation in flight cannot end without another message of `peer`.
  bool Needs(int peer) const;
  // What the worker said when it gave up a transfer, to or from any peer.
  const absl::Status& failure() const { return failure_; }

  // Gives unclaimed payloads back to the worker, which is about to close.
  void DropArrivals();
  // Ends all that is in flight; the worker is closed.
  void Cancel(const absl::Status& reason);

 private:
  enum class Stage : uint8_t {
    kDone,
    kPosted,       // a receive without its send
    kPulling,      // a receive whose bytes are being fetched
    kSending,      // a send that the worker has
    kAwaitingAck,  // a send that has left
  };
  struct Record final : Waiter {
    void OnDone(const absl::Status& status) override { owner->Ended(*this, status); }

    PointToPoint* owner = nullptr;
    Stage stage = Stage::kDone;
    bool is_answered = false;  // the send's kAck or kRefusal is here
    uint64_t ticket = 0;
    std::byte* memory = nullptr;
    Header header;  // its operation is the record's
    Header met;     // of a receive that pulls: its send
    absl::Status status;
  };
  struct Arrival {
    Header header;
    Payload payload;
  };
  struct Peer {
    std::deque<Arrival> arrivals;
    std::vector<Record*> posted;  // in launch order
    uint64_t sent = 0;            // messages
    uint64_t received = 0;
    uint64_t untaken_bytes = 0;  // of ours there
    uint64_t untaken_messages = 0;
    uint64_t owed_bytes = 0;  // credit of theirs here
    uint64_t owed_messages = 0;
  };

  absl::Status StartSend(Record& record);
  void StartReceive(Record& record);
  bool IsValid(const Header& header, const Payload& payload);
  // True if the payload is the worker's still, which only a rendezvous is.
  bool Meet(Record& record, const Arrival& arrival);
  void Settle(const Header& send);
  void Refuse(const Header& send, const Operation& receive);
  void Pulled(Record& record);
  void Finish(Record& record, const absl::Status& status);
  void Sent(Record& record);
  void Ended(Record& record, const absl::Status& status);

  const Members& members_;
  Worker& worker_;
  CompletionTable completions_;
  std::array<Record, CompletionTable::kPlaces> records_;  // by place
  std::vector<Peer> peers_;
  int next_sender_ = 0;  // whom FindSender asks first
  uint64_t events_ = 0;
  absl::Status failure_;
};

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_POINT_TO_POINT_H_
