// What comes in on one connection, cut into frames.
#ifndef PELTON_COMM_TRANSPORT_TCP_INBOX_H_
#define PELTON_COMM_TRANSPORT_TCP_INBOX_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/tcp/frame.h"

namespace pelton::tcp {

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

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_INBOX_H_
