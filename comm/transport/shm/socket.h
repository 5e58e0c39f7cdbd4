// Unix sockets that keep message boundaries and carry file descriptors.
#ifndef PELTON_COMM_TRANSPORT_SHM_SOCKET_H_
#define PELTON_COMM_TRANSPORT_SHM_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comm/transport/descriptor.h"

namespace pelton::shm {

// What ranks tell each other over their sockets; which fields count depends on the type.
struct Frame {
  enum Type : uint32_t {
    kHello = 1,
    kProof,
    kRegister,
    kDeregister,
    kOpen,
    kGoodbye,
    kFailed,
    kOpenFailed
  };
  uint32_t magic = kMagic;
  uint32_t type = 0;
  int32_t rank = 0;
  uint32_t region = 0;
  uint32_t communicator = 0;
  uint32_t generation = 0;
  uint64_t address = 0;        // of `private_nonce` in the sender's memory
  uint64_t shared_nonce = 0;   // to be read in memory that was passed
  uint64_t private_nonce = 0;  // to be read across processes
  int32_t code = 0;            // an absl::StatusCode
  uint32_t reserved = 0;

  static constexpr uint32_t kMagic = 0x504C5403;
};

// Of a text that goes along; a message takes no more than 4096 bytes.
inline constexpr size_t kMaxTextBytes = 2048;

struct Message {
  Frame frame;
  std::string payload;
  Descriptor attached;  // may be closed
};

struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

// A name in the abstract namespace, which vanishes with its socket; 128 random bits.
std::string RandomAddress();

// All of these: Errors: Unavailable: the kernel says no, or the peer closed; DeadlineExceeded.
absl::StatusOr<Descriptor> Listen(const std::string& address, int backlog);
// Blocks: until `deadline`, while too many wait to be accepted there.
absl::StatusOr<Descriptor> Connect(const std::string& address, absl::Time deadline);
// Who has connected. Blocks: until `deadline`; never if that is in the past.
absl::StatusOr<Descriptor> Accept(int listener, absl::Time deadline);
// For each socket, whether there is something to receive or to accept; at least one. Blocks: until
// `deadline`.
absl::StatusOr<std::vector<bool>> AwaitReadable(const std::vector<int>& sockets,
                                                absl::Time deadline);
absl::StatusOr<Credentials> PeerOf(int socket);

// Blocks: never. Errors: also ResourceExhausted: the peer's queue is full, try again later.
absl::Status Send(int socket, const Frame& frame, absl::string_view payload = "",
                  int attached = -1);
// Blocks: until `deadline`; never if that is in the past. Errors: also InvalidArgument: malformed.
absl::StatusOr<Message> Receive(int socket, absl::Time deadline);

// What the next message begins with, which stays to be received. Blocks: never. Errors: those of
// Receive.
absl::StatusOr<Frame> Peek(int socket);

// Has `descriptors` go along with a message, until which `control` lives. `control`: on the
// alignment of a cmsghdr, zeros, with room for them (CMSG_SPACE).
void Attach(absl::Span<const int> descriptors, char* control, msghdr& header);
// What came along with a message, whatever its number: what is not wanted is closed with the
// vector.
std::vector<Descriptor> AttachedTo(msghdr& header);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_SOCKET_H_
