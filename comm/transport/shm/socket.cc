#include "comm/transport/shm/socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton::shm {
namespace {

constexpr size_t kMaxPayloadBytes = 4096;
constexpr int kSocketType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

// The abstract namespace: a name that begins with a zero byte.
socklen_t FillAddress(const std::string& address, sockaddr_un* out) {
  out->sun_family = AF_UNIX;
  const size_t length = std::min(address.size(), sizeof out->sun_path - 1);
  std::memcpy(out->sun_path + 1, address.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

absl::Status WaitReadable(int descriptor, absl::Time deadline) {
  return AwaitReadable({descriptor}, deadline).status();
}

// The first message that has come. With MSG_PEEK among `flags` it stays, and so does what is
// attached to it. Errors: DeadlineExceeded: none has come; otherwise Receive's.
absl::StatusOr<Message> TakeFirst(int socket, int flags) {
  Message message;
  char payload[kMaxPayloadBytes];
  iovec parts[2] = {{&message.frame, sizeof message.frame}, {payload, sizeof payload}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  const bool takes = (flags & MSG_PEEK) == 0;
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  if (takes) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  ssize_t got = -1;
  do {
    got = recvmsg(socket, &header, flags | MSG_DONTWAIT);
    // A peer that closed with something of ours unread: its last messages come after ECONNRESET.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0 && errno == EAGAIN) return absl::DeadlineExceededError("no message came");
  if (got < 0) return SystemError("recvmsg");
  // An empty packet, which looks like the end, may bring a descriptor as well.
  std::vector<Descriptor> attached = AttachedTo(header);
  if (!attached.empty()) message.attached = std::move(attached.front());  // no rank sends more
  if (got == 0) return absl::UnavailableError("the connection was closed");
  if (got < static_cast<ssize_t>(sizeof(Frame)) || message.frame.magic != Frame::kMagic ||
      (header.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError("malformed message");
  }
  // There is room for what a rank attaches, so it was for want of a descriptor of our own.
  if (takes && (header.msg_flags & MSG_CTRUNC) != 0 && !message.attached.is_open()) {
    return absl::ResourceExhaustedError(absl::StrCat("recvmsg: ", ErrorText(EMFILE)));
  }
  message.payload.assign(payload, static_cast<size_t>(got) - sizeof(Frame));
  return message;
}

}  // namespace

std::string RandomAddress() {
  char bytes[16];
  size_t filled = 0;
  while (filled < sizeof bytes) {
    const ssize_t got = getrandom(bytes + filled, sizeof bytes - filled, 0);
    if (got > 0) filled += static_cast<size_t>(got);
  }
  return absl::StrCat("pelton-", absl::BytesToHexString(absl::string_view(bytes, sizeof bytes)));
}

absl::StatusOr<std::vector<bool>> AwaitReadable(const std::vector<int>& sockets,
                                                absl::Time deadline) {
  std::vector<pollfd> entries;
  for (int socket : sockets) entries.push_back({socket, POLLIN, 0});
  while (true) {
    const absl::Duration left =
        std::max(deadline - Clock::Real().Now(), absl::ZeroDuration()) + absl::Microseconds(999);
    const absl::Duration slice = InterruptSlice();
    const int64_t slice_ms = absl::ToInt64Milliseconds(std::min(left, slice));
    const int ready = poll(entries.data(), entries.size(), static_cast<int>(slice_ms));
    if (ready == 0 && left > slice) {
      RETURN_IF_ERROR(CheckInterrupt());
      continue;
    }
    if (ready == 0) return absl::DeadlineExceededError("no message came");
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return SystemError("poll");
    std::vector<bool> readable;
    for (const pollfd& entry : entries) readable.push_back(entry.revents != 0);
    return readable;
  }
}

absl::StatusOr<Descriptor> Listen(const std::string& address, int backlog) {
  Descriptor listener(socket(AF_UNIX, kSocketType, 0));
  if (!listener.is_open()) return SystemError("socket");
  sockaddr_un name{};
  const socklen_t length = FillAddress(address, &name);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&name), length) != 0) {
    return SystemError("bind");
  }
  if (listen(listener.get(), backlog) != 0) return SystemError("listen");
  return listener;
}

absl::StatusOr<Descriptor> Connect(const std::string& address, absl::Time deadline) {
  constexpr int kRetryMs = 1;
  Descriptor connection(socket(AF_UNIX, kSocketType, 0));
  if (!connection.is_open()) return SystemError("socket");
  sockaddr_un name{};
  const socklen_t length = FillAddress(address, &name);
  while (connect(connection.get(), reinterpret_cast<sockaddr*>(&name), length) != 0) {
    // The listener's queue is full; the kernel tells nobody when it no longer is.
    if (errno != EAGAIN && errno != EINTR) return SystemError("connect");
    if (Clock::Real().Now() >= deadline) {
      return absl::DeadlineExceededError("connect: too many wait there to be accepted");
    }
    RETURN_IF_ERROR(CheckInterrupt());
    poll(nullptr, 0, kRetryMs);
  }
  return connection;
}

absl::StatusOr<Descriptor> Accept(int listener, absl::Time deadline) {
  while (true) {
    RETURN_IF_ERROR(WaitReadable(listener, deadline));
    Descriptor connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.is_open()) return connection;
    if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) return SystemError("accept");
  }
}

absl::StatusOr<Credentials> PeerOf(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return SystemError("SO_PEERCRED");
  }
  return Credentials{credentials.pid, credentials.uid};
}

absl::Status Send(int socket, const Frame& frame, absl::string_view payload, int attached) {
  iovec parts[2] = {{const_cast<Frame*>(&frame), sizeof frame},
                    {const_cast<char*>(payload.data()), payload.size()}};
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = payload.empty() ? 1 : 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (attached >= 0) Attach({&attached, 1}, control, header);
  while (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ETOOMANYREFS) {
      return absl::ResourceExhaustedError("the peer's queue is full");
    }
    return SystemError("sendmsg");
  }
  return absl::OkStatus();
}

absl::StatusOr<Message> Receive(int socket, absl::Time deadline) {
  while (true) {
    absl::StatusOr<Message> message = TakeFirst(socket, MSG_CMSG_CLOEXEC);
    if (!absl::IsDeadlineExceeded(message.status())) return message;
    RETURN_IF_ERROR(WaitReadable(socket, deadline));
  }
}

absl::StatusOr<Frame> Peek(int socket) {
  ASSIGN_OR_RETURN(const Message first, TakeFirst(socket, MSG_PEEK));
  return first.frame;
}

void Attach(absl::Span<const int> descriptors, char* control, msghdr& header) {
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
}

std::vector<Descriptor> AttachedTo(msghdr& header) {
  std::vector<Descriptor> attached;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(control) + i * sizeof number, sizeof number);
      attached.emplace_back(number);
    }
  }
  return attached;
}

}  // namespace pelton::shm
