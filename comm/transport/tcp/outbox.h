// What one rank has still to send to one peer, in the order in which it may leave.
#ifndef PELTON_COMM_TRANSPORT_TCP_OUTBOX_H_
#define PELTON_COMM_TRANSPORT_TCP_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/tcp/connection.h"

namespace pelton::tcp {

// Whose frames an outbox holds. Threads: the outbox's. Owns: what its subclass says.
class Sender {
 public:
  // Bytes of its memory have left; `is_told`: a waiter of its has been told of the end.
  virtual void OnLeaving(bool is_told) = 0;

 protected:
  ~Sender() = default;
};

// Short frames go before the next piece of a body, because a peer that waits for a short frame must
// not wait for megabytes. Bytes go from the caller's memory to the kernel, without a copy of ours.
// Threads: one at a time. Owns: the queues; not the memory, which stays until a waiter is told.
class Outbox {
 public:
  static constexpr size_t kPieceBytes = size_t{256} << 10;
  // Bounds one Write, because the thread that writes must also read, and others wait for the mutex.
  static constexpr size_t kMaxBytesPerWrite = size_t{256} << 10;
  static constexpr size_t kMostShort = size_t{1} << 16;

  // Queues a message, or the offer of a rendezvous, to the worker behind `port`.
  void Put(const network::Worker::SendRequest& request, uint32_t port, Sender& sender);
  // Queues a frame without anything behind it.
  void Put(const Frame& note);
  // Queues a greeting before everything else; nothing has been written yet.
  void Greet(const network::Header& header);
  // The peer fetches what was offered under `id`. False: nothing is offered there.
  bool Fetched(uint64_t id);
  // The peer wants nothing of what was offered under `id`, or no more of it. Where some of it has
  // come and not all will, the peer is told when nothing more does.
  void Declined(uint64_t id);

  bool is_empty() const { return !is_writing_ && short_.empty() && shares_.empty(); }
  // Whether a peer that only asks and never reads has made it too long.
  bool is_overfull() const { return short_.size() > kMostShort; }
  // Whether anything is queued that no sender waits for, so that nobody may come to write it.
  bool HoldsOrphans() const;
  // Whether anything of `sender` is queued; offers that nobody has fetched are not.
  bool Holds(const Sender& sender) const;
  // Writes what the socket takes, up to a bound. True: anything left. Blocks: never. Errors:
  // Unavailable: the connection is broken.
  absl::StatusOr<bool> Write(int socket);
  // Tells all waiters that theirs has ended so.
  void Fail(const absl::Status& status);
  // Lets go of the memory of `sender` and tells its waiters so; what is short leaves all the same,
  // from a copy, and so does the rest of a piece under way, which the peer would else take the next
  // frame for.
  void Forget(const Sender& sender, const absl::Status& status);

 private:
  struct Short {
    Frame frame;
    bool has_header = false;
    network::Header header;
    const std::byte* data = nullptr;
    size_t size_bytes = 0;
    network::Waiter* waiter = nullptr;
    Sender* sender = nullptr;  // null: nobody's any more
    std::vector<std::byte> kept;
  };
  struct Body {
    uint64_t id = 0;
    const std::byte* data = nullptr;
    size_t size_bytes = 0;
    network::Waiter* waiter = nullptr;
    Sender* sender = nullptr;
  };
  // The bodies of one sender, none of which waits for another sender's.
  struct Share {
    Sender* sender;
    std::deque<Body> bodies;
  };
  // What is being written: a head, then bytes.
  struct Current {
    std::byte head[sizeof(Frame) + sizeof(network::Header)];
    size_t head_bytes = 0;
    const std::byte* data = nullptr;
    size_t size_bytes = 0;
    size_t written = 0;                 // of both
    uint64_t body = 0;                  // of which it is a piece; 0: it is none
    network::Waiter* waiter = nullptr;  // told at its end
    Sender* sender = nullptr;
    std::vector<std::byte> kept;
  };
  using Waiters = std::vector<network::Waiter*>;

  // The share of `sender`, or the end: it has no body there.
  std::deque<Share>::iterator ShareOf(const Sender* sender);
  bool Next();
  void BeginShort();
  void BeginPiece();
  // The body under that number, taken out. No value: there is none.
  std::optional<Body> TakeBody(uint64_t id);
  void ForgetOffers(const Sender& sender, Waiters* waiters);
  void ForgetBodies(const Sender& sender, Waiters* waiters);
  void KeepShort(const Sender& sender, Waiters* waiters);

  bool is_writing_ = false;  // current_
  Current current_;
  std::deque<Short> short_;
  std::deque<Share> shares_;  // of which each in turn has a piece cut off its first body
  std::unordered_map<uint64_t, Body> offers_;
  uint64_t last_id_ = 0;
};

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_OUTBOX_H_
