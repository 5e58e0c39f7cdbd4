#include "comm/transport/tcp/connection.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/fork.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton::tcp {
namespace {

struct Option {
  int level;
  int name;
  int value;
};

// A host that vanished is noticed within seconds, on a connection that is idle; see IsSilent for
// the others. What the kernel holds unsent is bounded, so that a short message need not wait behind
// megabytes of a long one.
constexpr Option kOptions[] = {
    {IPPROTO_TCP, TCP_NODELAY, 1},  {SOL_SOCKET, SO_KEEPALIVE, 1},
    {IPPROTO_TCP, TCP_KEEPIDLE, 3}, {IPPROTO_TCP, TCP_KEEPINTVL, 1},
    {IPPROTO_TCP, TCP_KEEPCNT, 3},  {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 256 << 10},
};

// As long as keepalive takes.
constexpr uint32_t kSilenceMs = 6000;
constexpr uint8_t kUnansweredTries = 3;

void SetOptions(int socket) {
  for (const Option& option : kOptions) {
    setsockopt(socket, option.level, option.name, &option.value, sizeof option.value);
  }
}

absl::StatusOr<Descriptor> MakeSocket(in_addr_t host) {
  Descriptor made(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) return SystemError("making a socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = host;
  // The port is chosen with the peer's address in view: there are more connections than ports.
  const int later = 1;
  setsockopt(made.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &later, sizeof later);
  if (bind(made.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return SystemError("binding to the interface");
  }
  return made;
}

constexpr size_t kBufferBytes = size_t{64} << 10;
// One connection must not keep the thread from the others, nor other threads from the mutex.
constexpr size_t kMaxBytesPerRead = size_t{256} << 10;
constexpr size_t kLongestFrame = sizeof(Frame) + sizeof(network::Header) + kMaxMessageBytes;
static_assert(kLongestFrame <= kBufferBytes, "a short frame must fit the buffer");

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tcp: a frame ", what));
}

}  // namespace

absl::Status SystemError(absl::string_view what) {
  return Annotate(pelton::SystemError(what), "tcp");
}

std::string AddressOf(int socket) {
  sockaddr_in address = {};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return absl::StrCat(text, ":", ntohs(address.sin_port));
}

std::optional<sockaddr_in> ParseAddress(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  uint32_t port = 0;
  if (parts.size() != 2 || inet_pton(AF_INET, parts[0].c_str(), &address.sin_addr) != 1 ||
      !absl::SimpleAtoi(parts[1], &port) || port == 0 || port > UINT16_MAX) {
    return std::nullopt;
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

absl::StatusOr<Descriptor> Listen(in_addr_t host, int backlog) {
  absl::StatusOr<Descriptor> made = MakeSocket(host);
  if (made.ok() && listen(made->get(), backlog) != 0) return SystemError("listening");
  if (made.ok()) CloseInChildren(made->get());
  return made;
}

absl::StatusOr<Descriptor> Accept(int listener, in_addr_t* host) {
  sockaddr_in from = {};
  socklen_t size = sizeof from;
  Descriptor accepted(
      accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.is_open() && IsExhaustion(errno)) return SystemError("accepting a connection");
  if (accepted.is_open()) {
    SetOptions(accepted.get());
    CloseInChildren(accepted.get());
  }
  *host = from.sin_addr.s_addr;
  return accepted;
}

// TCP_USER_TIMEOUT would also end a connection whose peer is alive and only does not read.
bool IsSilent(int socket) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // Both start anew with every answer, and a peer that does not read answers.
  const bool is_unanswered =
      info.tcpi_retransmits >= kUnansweredTries || info.tcpi_probes >= kUnansweredTries;
  return is_unanswered && info.tcpi_last_ack_recv >= kSilenceMs;
}

absl::StatusOr<Descriptor> Connect(in_addr_t host, const sockaddr_in& to) {
  absl::StatusOr<Descriptor> made = MakeSocket(host);
  if (!made.ok()) return made;
  SetOptions(made->get());
  CloseInChildren(made->get());
  if (connect(made->get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 &&
      errno != EINPROGRESS) {
    return SystemError("connecting");
  }
  return made;
}

bool IsDelivered(int socket) {
  int unacknowledged = 0;
  if (ioctl(socket, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0) return true;
  tcp_info info = {};
  socklen_t size = sizeof info;
  const bool is_known = getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
  return is_known && info.tcpi_state == TCP_CLOSE;
}

absl::Status ErrorOf(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error != 0 ? SystemError("the connection broke")
                    : absl::UnavailableError("tcp: the peer closed the connection");
}

Inbox::Inbox(FrameSink& sink) : sink_(sink), buffer_(new std::byte[kBufferBytes]) {}

absl::StatusOr<bool> Inbox::Read(int socket) {
  size_t taken = 0;
  while (taken < kMaxBytesPerRead) {
    const size_t room = kBufferBytes - end_ + (body_target_ != nullptr ? body_left_ : 0);
    ASSIGN_OR_RETURN(const size_t count, Receive(socket));
    if (count == 0) break;
    taken += count;
    RETURN_IF_ERROR(Parse());
    if (count < room) break;  // that was all, and another look costs a system call
  }
  return taken > 0;
}

void Inbox::Divert(uint64_t id) {
  if (body_.id == id) body_target_ = nullptr;
}

// Into the body under way first, and what follows it into the buffer, which is empty while a body
// is under way. One that goes nowhere comes into the buffer, too, and is left out of it.
absl::StatusOr<size_t> Inbox::Receive(int socket) {
  const size_t of_target = body_target_ != nullptr ? body_left_ : 0;
  iovec parts[] = {{body_target_, of_target}, {buffer_.get() + end_, kBufferBytes - end_}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  if (received == 0) return absl::UnavailableError("tcp: the peer closed the connection");
  if (received < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    return SystemError("receiving");
  }
  const auto count = static_cast<size_t>(received);
  const size_t of_body = std::min(count, body_left_);
  body_left_ -= of_body;
  if (body_target_ != nullptr) {
    body_target_ += of_body;
    end_ += count - of_body;
  } else {
    begin_ += of_body;
    end_ += count;
  }
  if (of_body > 0) EndBody();
  return count;
}

absl::Status Inbox::Parse() {
  while (body_left_ == 0) {
    ASSIGN_OR_RETURN(const bool is_whole, ParseFrame());
    if (!is_whole) break;
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Inbox::ParseFrame() {
  const size_t there = end_ - begin_;
  if (there < sizeof(Frame)) return false;
  Frame frame;
  std::memcpy(&frame, buffer_.get() + begin_, sizeof frame);
  if (frame.type == FrameType::kBody) {
    begin_ += sizeof frame;
    RETURN_IF_ERROR(Begin(frame));
    return true;
  }
  const bool is_message = frame.type == FrameType::kMessage;
  const bool has_header =
      is_message || frame.type == FrameType::kOffer || frame.type == FrameType::kGreeting;
  if (is_message && frame.size_bytes > kMaxMessageBytes) return Malformed("is too long");
  network::Header header;
  const size_t head_bytes = sizeof frame + (has_header ? sizeof header : 0);
  const size_t payload_bytes = is_message ? frame.size_bytes : 0;
  if (there < head_bytes + payload_bytes) return false;
  const std::byte* const at = buffer_.get() + begin_;
  if (has_header) std::memcpy(&header, at + sizeof frame, sizeof header);
  begin_ += head_bytes + payload_bytes;
  RETURN_IF_ERROR(sink_.OnFrame(frame, header, at + head_bytes));
  return true;
}

absl::Status Inbox::Begin(const Frame& frame) {
  ASSIGN_OR_RETURN(body_target_, sink_.OnBody(frame));
  body_ = frame;
  body_left_ = frame.size_bytes;
  TakeBuffered();
  EndBody();
  return absl::OkStatus();
}

void Inbox::EndBody() {
  if (body_left_ > 0) return;
  body_target_ = nullptr;
  sink_.OnBodyDone(body_);
}

void Inbox::TakeBuffered() {
  const size_t count = std::min(body_left_, end_ - begin_);
  if (body_target_ != nullptr && count > 0) {
    std::memcpy(body_target_, buffer_.get() + begin_, count);
    body_target_ += count;
  }
  begin_ += count;
  body_left_ -= count;
}

}  // namespace pelton::tcp
