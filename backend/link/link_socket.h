// Whole messages with file descriptors between a trainer and its rank's daemon.
#ifndef PELTON_BACKEND_LINK_LINK_SOCKET_H_
#define PELTON_BACKEND_LINK_LINK_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comm/transport/descriptor.h"
#include "core/base/sync.h"
#include "google/protobuf/message_lite.h"

namespace pelton {

// A Unix socket that keeps message boundaries (SOCK_SEQPACKET). A message that is longer than a
// packet travels in several, so that its length is bounded here and not by the kernel's buffers.
// Threads: Send and Shutdown by any; Receive by one at a time. Owns: the socket.
class LinkSocket {
 public:
  // The largest value of the key-value store, with its key and framing.
  static constexpr size_t kMaxMessageBytes = (size_t{16} << 20) + (size_t{128} << 10);
  static constexpr size_t kMaxDescriptors = 4;
  // Between the packets of one message; a peer that stops in the middle is given up after it.
  static constexpr absl::Duration kPacketPatience = absl::Seconds(5);
  // For the message of another thread that is on its way, whatever the deadline: more than the
  // second that a trainer's own messages have, so that an abort behind one is told, and its
  // connection is not cut in its place.
  static constexpr absl::Duration kTurnPatience = absl::Milliseconds(1500);

  struct Message {
    std::string payload;
    std::vector<Descriptor> descriptors;
  };

  explicit LinkSocket(Descriptor socket) : socket_(std::move(socket)) {}

  // Listens at `path`; every process that may open the folder may connect. Errors: InvalidArgument:
  // the path does not fit into a socket's address; Unavailable: the kernel refuses.
  static absl::StatusOr<Descriptor> Listen(const std::string& path);
  // Errors: InvalidArgument: as Listen; NotFound: nobody listens there; DeadlineExceeded.
  static absl::StatusOr<Descriptor> Connect(const std::string& path, absl::Time deadline);

  // Blocks: until `deadline`, while the peer does not take what was sent before; kTurnPatience at
  // least, where another thread sends. Errors:
  // InvalidArgument: too long, or too many descriptors; Unavailable: the peer is gone;
  // DeadlineExceeded: nothing more may be sent.
  absl::Status Send(absl::string_view payload, absl::Span<const int> descriptors,
                    absl::Time deadline);
  absl::Status Send(const google::protobuf::MessageLite& message, absl::Time deadline);

  // The next message. Blocks: until `deadline`; never if that is in the past, unless a message has
  // begun. Errors: DeadlineExceeded: none has come; Unavailable: the peer is gone; InvalidArgument:
  // what came is no message of this protocol; after any but the first nothing more may be received.
  absl::StatusOr<Message> Receive(absl::Time deadline);
  // The same, parsed. Errors: also InvalidArgument: not of this type.
  absl::Status Receive(google::protobuf::MessageLite& message, absl::Time deadline);

  // The same, with a look now and then, which ends the wait by its error.
  absl::StatusOr<Message> ReceiveWithLooks(absl::Time deadline,
                                           absl::FunctionRef<absl::Status()> look);

  // Whether the peer has ended its direction, or is gone; what it has sent before can still be
  // received. Blocks: never.
  bool IsClosed() const;
  // Ends both directions. Threads that wait in Receive or Send at either end get Unavailable.
  void Shutdown();
  int descriptor() const { return socket_.get(); }

 private:
  absl::Status SendPacket(absl::string_view header, absl::string_view chunk,
                          absl::Span<const int> descriptors, absl::Time deadline);

  const Descriptor socket_;
  Turn sending_;  // the packets of one message follow each other
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINK_SOCKET_H_
