#include "comm/transport/tcp/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/transport/tcp/socket.h"

namespace pelton::tcp {

void Outbox::Put(const network::Worker::Parcel& parcel) {
  const auto* const data = static_cast<const std::byte*>(parcel.data);
  Short message;
  message.has_header = true;
  message.header = *parcel.header;
  message.frame.size_bytes = parcel.size_bytes;
  if (parcel.is_rendezvous) {
    message.frame.type = FrameType::kOffer;
    message.frame.id = ++last_id_;
    offers_[last_id_] = {last_id_, data, parcel.size_bytes, parcel.waiter};
  } else {
    message.data = data;
    message.size_bytes = parcel.size_bytes;
    message.waiter = parcel.waiter;
  }
  short_.push_back(message);
}

void Outbox::Put(FrameType type, uint64_t id) {
  Short note;
  note.frame.type = type;
  note.frame.id = id;
  short_.push_back(note);
}

bool Outbox::Fetched(uint64_t id) {
  const auto found = offers_.find(id);
  if (found == offers_.end()) return false;
  bodies_.push_back(found->second);
  offers_.erase(found);
  return true;
}

bool Outbox::Declined(uint64_t id) {
  const auto found = offers_.find(id);
  if (found == offers_.end()) return false;
  network::Waiter* const waiter = found->second.waiter;
  offers_.erase(found);
  waiter->OnDone(absl::OkStatus());
  return true;
}

bool Outbox::Next() {
  if (short_.empty() && bodies_.empty()) return false;
  is_writing_ = true;
  current_ = Current();
  Current& next = current_;
  const auto add = [&next](const auto& value) {
    std::memcpy(next.head + next.head_bytes, &value, sizeof value);
    next.head_bytes += sizeof value;
  };
  if (!short_.empty()) {
    const Short& message = short_.front();
    add(message.frame);
    if (message.has_header) add(message.header);
    next.data = message.data;
    next.size_bytes = message.size_bytes;
    next.waiter = message.waiter;
    short_.pop_front();
    return true;
  }
  Body& body = bodies_.front();
  next.data = body.data;
  next.size_bytes = std::min(body.size_bytes, kPieceBytes);
  Frame frame;
  frame.type = FrameType::kBody;
  frame.id = body.id;
  frame.size_bytes = next.size_bytes;
  add(frame);
  body.data += next.size_bytes;
  body.size_bytes -= next.size_bytes;
  if (body.size_bytes > 0) return true;
  next.waiter = body.waiter;
  bodies_.pop_front();
  return true;
}

absl::StatusOr<bool> Outbox::Write(int socket) {
  size_t written = 0;
  while (written < kMaxBytesPerWrite && (is_writing_ || Next())) {
    Current& now = current_;
    const size_t head_left = now.head_bytes - std::min(now.head_bytes, now.written);
    const size_t data_written = now.written - (now.head_bytes - head_left);
    iovec parts[] = {
        {now.head + now.head_bytes - head_left, head_left},
        {const_cast<std::byte*>(now.data) + data_written, now.size_bytes - data_written}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    // ENOTCONN: it is still connecting.
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN)) break;
    if (sent < 0) return SystemError("sending");
    written += static_cast<size_t>(sent);
    now.written += static_cast<size_t>(sent);
    if (now.written < now.head_bytes + now.size_bytes) continue;
    network::Waiter* const waiter = now.waiter;
    is_writing_ = false;
    if (waiter != nullptr) waiter->OnDone(absl::OkStatus());
  }
  return written > 0;
}

void Outbox::Fail(const absl::Status& status) {
  std::deque<network::Waiter*> waiters;
  if (is_writing_) waiters.push_back(current_.waiter);
  for (const Short& message : short_) waiters.push_back(message.waiter);
  for (const Body& body : bodies_) waiters.push_back(body.waiter);
  for (const auto& [id, body] : offers_) waiters.push_back(body.waiter);
  is_writing_ = false;
  short_.clear();
  bodies_.clear();
  offers_.clear();
  for (network::Waiter* const waiter : waiters) {
    if (waiter != nullptr) waiter->OnDone(status);
  }
}

}  // namespace pelton::tcp
