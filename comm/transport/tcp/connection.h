// A socket and what comes in on it: nobody knows whose it is before its greeting.
#ifndef PELTON_COMM_TRANSPORT_TCP_CONNECTION_H_
#define PELTON_COMM_TRANSPORT_TCP_CONNECTION_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/tcp/frame.h"
#include "comm/transport/tcp/inbox.h"
#include "core/base/ids.h"

namespace pelton::tcp {

class Connection;

// Where the frames of ranks go. Threads: the connection's. Owns: what its subclass says.
class ConnectionSink {
 public:
  virtual ~ConnectionSink() = default;
  // Whose end it is. Errors end the connection: a stranger's, or not that of the rank it was made
  // to.
  virtual absl::StatusOr<Rank> OnGreeting(Connection& connection,
                                          const network::Header& header) = 0;
  // As FrameSink's.
  virtual absl::Status OnFrame(Rank peer, const Frame& frame, const network::Header& header,
                               const std::byte* payload) = 0;
  virtual absl::StatusOr<std::byte*> OnBody(Rank peer, const Frame& frame) = 0;
  virtual void OnBodyDone(Rank peer, const Frame& frame) = 0;
};

// Threads: one at a time. Owns: the socket.
class Connection final : public FrameSink {
 public:
  // `peer`: the rank that it was made to; none: it came in. The sink outlives it.
  Connection(ConnectionSink& sink, Descriptor socket, uint64_t key, std::optional<Rank> peer)
      : sink_(sink), socket_(std::move(socket)), key_(key), peer_(peer), inbox_(*this) {}

  int socket() const { return socket_.get(); }
  uint64_t key() const { return key_; }
  // None: it came in and has not greeted yet.
  const std::optional<Rank>& peer() const { return peer_; }
  // Takes in what is there, up to a bound. Blocks: never. Errors: as Inbox::Read, or the sink's.
  absl::StatusOr<bool> Read() { return inbox_.Read(socket_.get()); }
  void Divert(uint64_t id) { inbox_.Divert(id); }
  // The offer whose bytes are coming in; 0: none.
  uint64_t body_under_way() const { return inbox_.body_under_way(); }

  absl::Status OnFrame(const Frame& frame, const network::Header& header,
                       const std::byte* payload) override {
    if (frame.type == FrameType::kGreeting && !has_greeted_) {
      const absl::StatusOr<Rank> peer = sink_.OnGreeting(*this, header);
      if (!peer.ok()) return peer.status();
      peer_ = *peer;
      has_greeted_ = true;
      return absl::OkStatus();
    }
    return has_greeted_ ? sink_.OnFrame(*peer_, frame, header, payload) : Stranger();
  }
  absl::StatusOr<std::byte*> OnBody(const Frame& frame) override {
    if (!has_greeted_) return Stranger();
    return sink_.OnBody(*peer_, frame);
  }
  void OnBodyDone(const Frame& frame) override { sink_.OnBodyDone(*peer_, frame); }

 private:
  static absl::Status Stranger() { return absl::UnauthenticatedError("tcp: a stranger"); }

  ConnectionSink& sink_;
  const Descriptor socket_;
  const uint64_t key_;
  std::optional<Rank> peer_;
  bool has_greeted_ = false;
  Inbox inbox_;
};

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_CONNECTION_H_
