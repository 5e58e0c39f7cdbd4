// A connection of a trunk: its socket, the frames that it carries, and what has come in.
#ifndef PELTON_COMM_TRANSPORT_TCP_CONNECTION_H_
#define PELTON_COMM_TRANSPORT_TCP_CONNECTION_H_

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/network/wire.h"
#include "core/base/ids.h"

namespace pelton::tcp {

// "tcp: <what>: <the system's words for errno>": ResourceExhausted where this process or host has
// nothing left to give, else Unavailable.
absl::Status SystemError(absl::string_view what);

// "<IPv4>:<port>" of a socket's own end, and back. No value: it is no such text.
std::string AddressOf(int socket);
std::optional<sockaddr_in> ParseAddress(const std::string& text);

// Listens on a free port of `host`, an IPv4 address in network order.
absl::StatusOr<Descriptor> Listen(in_addr_t host, int backlog);
// The next connection that waits, from `*host`; closed if there is none. Errors: ResourceExhausted:
// there may be one, and no descriptor for it.
absl::StatusOr<Descriptor> Accept(int listener, in_addr_t* host);
// Begins to connect from `host` to `to`. Blocks: never.
absl::StatusOr<Descriptor> Connect(in_addr_t host, const sockaddr_in& to);
// Whether the other end has answered nothing for some seconds, although the kernel keeps asking:
// its host has vanished, or the link is cut.
bool IsSilent(int socket);
// Whether the other end's kernel has all that was written, or will never have it.
bool IsDelivered(int socket);
// Why a connection broke.
absl::Status ErrorOf(int socket);

// What stands before everything that a TCP connection carries, either way.

// The numbers are part of the wire format: append only.
enum class FrameType : uint32_t {
  kMessage = 1,    // a Header follows, then `size_bytes` of payload
  kOffer = 2,      // a Header follows; `size_bytes` wait at the sender under `id`
  kFetch = 3,      // asks for what was offered under `id`
  kDecline = 4,    // nobody wants what was offered under `id`, or the rest of it
  kBody = 5,       // the next `size_bytes` of what was offered under `id` follow
  kGreeting = 6,   // a Header follows, which proves whose end this is; the first frame of each end
  kWithdrawn = 7,  // nothing more of what was offered under `id` will come
  kGone = 8,       // the sender has no worker behind `port`, to which something has come
};

struct Frame {
  FrameType type = FrameType::kMessage;
  uint32_t port = 0;  // of the receiver's worker, for a message and an offer; see kGone
  uint64_t id = 0;    // of the offer, by its sender
  uint64_t size_bytes = 0;
};
static_assert(sizeof(Frame) == 24, "part of the wire format");
static_assert(std::is_trivially_copyable_v<Frame>);

// A message that is not offered; more is no rank's.
inline constexpr size_t kMaxMessageBytes = 8192;

// What comes in on one connection, cut into frames.

// Where the frames of an inbox go. Threads: the inbox's. Owns: what its subclass says.
class FrameSink {
 public:
  // `header` and the payload are there for kMessage, the header for kOffer and kGreeting. Errors
  // end the connection.
  virtual absl::Status OnFrame(const Frame& frame, const network::Header& header,
                               const std::byte* payload) = 0;
  // Where the bytes of a kBody go: at least `frame.size_bytes`; null: nowhere. Errors end the
  // connection.
  virtual absl::StatusOr<std::byte*> OnBody(const Frame& frame) = 0;
  // All of them are there.
  virtual void OnBodyDone(const Frame& frame) = 0;

 protected:
  ~FrameSink() = default;
};

// Bytes of a body go from the kernel to their place without a copy of ours; all else is short.
// Threads: one at a time. Owns: a buffer for what is short.
class Inbox {
 public:
  explicit Inbox(FrameSink& sink);

  // Takes in what the socket has, up to a bound. True: there was anything. Blocks: never. Errors:
  // Unavailable: the connection is broken or was closed; InvalidArgument: no rank sends that.
  absl::StatusOr<bool> Read(int socket);

  // What is still to come of the body under way goes nowhere, if it is of the offer `id`.
  void Divert(uint64_t id);
  // The offer whose bytes are coming in; 0: none.
  uint64_t body_under_way() const { return body_left_ > 0 ? body_.id : 0; }

 private:
  absl::StatusOr<size_t> Receive(int socket);
  absl::Status Parse();
  // False: a frame is not whole yet.
  absl::StatusOr<bool> ParseFrame();
  absl::Status Begin(const Frame& frame);
  void EndBody();
  void TakeBuffered();

  FrameSink& sink_;
  const std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  Frame body_;                        // the kBody under way
  std::byte* body_target_ = nullptr;  // null: no body is under way, or it goes nowhere
  size_t body_left_ = 0;
};

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
