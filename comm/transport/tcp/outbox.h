// What one rank has still to send to one peer, in the order in which it may leave.
#ifndef PELTON_COMM_TRANSPORT_TCP_OUTBOX_H_
#define PELTON_COMM_TRANSPORT_TCP_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/tcp/frame.h"

namespace pelton::tcp {

// Short frames go before the next piece of a body: whoever waits for one must not wait for
// megabytes. Bytes go from the caller's memory to the kernel, without a copy of ours.
// Threads: one at a time. Owns: the queues; not the memory, which stays until a waiter is told.
class Outbox {
 public:
  static constexpr size_t kPieceBytes = size_t{256} << 10;
  // Of one Write: who writes must also read.
  static constexpr size_t kMaxBytesPerWrite = size_t{1} << 20;

  // Queues a message, or the offer of a rendezvous.
  void Put(const network::Worker::Parcel& parcel);
  // Queues a frame without anything behind it.
  void Put(FrameType type, uint64_t id);
  // The peer fetches what was offered under `id`, or never will. False: nothing is offered there.
  bool Fetched(uint64_t id);
  bool Declined(uint64_t id);

  bool is_empty() const { return !is_writing_ && short_.empty() && bodies_.empty(); }
  // Writes what the socket takes, up to a bound. True: anything left. Blocks: never. Errors:
  // Unavailable: the connection is broken.
  absl::StatusOr<bool> Write(int socket);
  // Tells all waiters that theirs has ended so.
  void Fail(const absl::Status& status);

 private:
  struct Short {
    Frame frame;
    bool has_header = false;
    network::Header header;
    const std::byte* data = nullptr;
    size_t size_bytes = 0;
    network::Waiter* waiter = nullptr;
  };
  struct Body {
    uint64_t id = 0;
    const std::byte* data = nullptr;
    size_t size_bytes = 0;
    network::Waiter* waiter = nullptr;
  };
  // What is being written: a head, then bytes.
  struct Current {
    std::byte head[sizeof(Frame) + sizeof(network::Header)];
    size_t head_bytes = 0;
    const std::byte* data = nullptr;
    size_t size_bytes = 0;
    size_t written = 0;                 // of both
    network::Waiter* waiter = nullptr;  // told at its end
  };

  bool Next();

  bool is_writing_ = false;  // current_
  Current current_;
  std::deque<Short> short_;
  std::deque<Body> bodies_;  // the first one is being cut into pieces
  std::unordered_map<uint64_t, Body> offers_;
  uint64_t last_id_ = 0;
};

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_OUTBOX_H_
