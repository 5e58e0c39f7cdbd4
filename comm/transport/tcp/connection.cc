#include "comm/transport/tcp/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "comm/transport/tcp/socket.h"
#include "core/base/status.h"

namespace pelton::tcp {
namespace {

constexpr size_t kBufferBytes = size_t{64} << 10;
// One connection must not keep the thread from the others, nor other threads from the mutex.
constexpr size_t kMaxBytesPerRead = size_t{256} << 10;
constexpr size_t kLongestFrame = sizeof(Frame) + sizeof(network::Header) + kMaxMessageBytes;
static_assert(kLongestFrame <= kBufferBytes, "a short frame must fit the buffer");

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tcp: a frame ", what));
}

}  // namespace

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
