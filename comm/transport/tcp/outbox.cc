#include "comm/transport/tcp/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/transport/tcp/socket.h"

namespace pelton::tcp {
namespace {

// Moves what `entry` still has to send into a copy of its own, and gives its waiter away.
template <typename Entry>
void Keep(Entry& entry, std::vector<network::Waiter*>* waiters) {
  if (entry.size_bytes > 0) entry.kept.assign(entry.data, entry.data + entry.size_bytes);
  entry.data = entry.kept.data();
  entry.sender = nullptr;
  waiters->push_back(std::exchange(entry.waiter, nullptr));
}

}  // namespace

void Outbox::Put(const network::Worker::Parcel& parcel, uint32_t port, Sender& sender) {
  const auto* const data = static_cast<const std::byte*>(parcel.data);
  Short& message = short_.emplace_back();
  message.has_header = true;
  message.header = *parcel.header;
  message.frame.port = port;
  message.frame.size_bytes = parcel.size_bytes;
  message.sender = &sender;
  if (parcel.is_rendezvous) {
    message.frame.type = FrameType::kOffer;
    message.frame.id = ++last_id_;
    offers_[last_id_] = {last_id_, data, parcel.size_bytes, parcel.waiter, &sender};
  } else {
    message.data = data;
    message.size_bytes = parcel.size_bytes;
    message.waiter = parcel.waiter;
  }
}

void Outbox::Put(FrameType type, uint64_t id) {
  Short& note = short_.emplace_back();
  note.frame.type = type;
  note.frame.id = id;
}

void Outbox::Greet(const network::Header& header) {
  Short& greeting = short_.emplace_front();
  greeting.frame.type = FrameType::kGreeting;
  greeting.has_header = true;
  greeting.header = header;
}

bool Outbox::Fetched(uint64_t id) {
  const auto found = offers_.find(id);
  if (found == offers_.end()) return false;
  bodies_.push_back(found->second);
  offers_.erase(found);
  return true;
}

void Outbox::Declined(uint64_t id) {
  if (const auto found = offers_.find(id); found != offers_.end()) {
    network::Waiter* const waiter = found->second.waiter;
    offers_.erase(found);
    waiter->OnDone(absl::OkStatus());
    return;
  }
  const auto body =
      std::find_if(bodies_.begin(), bodies_.end(), [id](const Body& it) { return it.id == id; });
  if (body != bodies_.end()) {
    network::Waiter* const waiter = body->waiter;
    bodies_.erase(body);
    // A piece of it that is under way leaves whole.
    if (is_writing_ && current_.body == id) {
      current_.waiter = waiter;
    } else {
      waiter->OnDone(absl::OkStatus());
    }
  }
  // Also if the last of it has left already: whoever declines waits for this.
  Put(FrameType::kWithdrawn, id);
}

bool Outbox::Next() {
  if (short_.empty() && bodies_.empty()) return false;
  is_writing_ = true;
  current_ = Current();
  short_.empty() ? BeginPiece() : BeginShort();
  return true;
}

void Outbox::BeginShort() {
  Short& message = short_.front();
  Current& next = current_;
  std::memcpy(next.head, &message.frame, sizeof message.frame);
  next.head_bytes = sizeof message.frame;
  if (message.has_header) {
    std::memcpy(next.head + next.head_bytes, &message.header, sizeof message.header);
    next.head_bytes += sizeof message.header;
  }
  next.data = message.data;
  next.size_bytes = message.size_bytes;
  next.waiter = message.waiter;
  next.sender = message.sender;
  next.kept = std::move(message.kept);  // its bytes stay where they are
  short_.pop_front();
}

void Outbox::BeginPiece() {
  Body& body = bodies_.front();
  Current& next = current_;
  next.data = body.data;
  next.size_bytes = std::min(body.size_bytes, kPieceBytes);
  next.sender = body.sender;
  next.body = body.id;
  Frame frame;
  frame.type = FrameType::kBody;
  frame.id = body.id;
  frame.size_bytes = next.size_bytes;
  std::memcpy(next.head, &frame, sizeof frame);
  next.head_bytes = sizeof frame;
  body.data += next.size_bytes;
  body.size_bytes -= next.size_bytes;
  if (body.size_bytes > 0) return;
  next.waiter = body.waiter;
  bodies_.pop_front();
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
    network::Waiter* const waiter = now.waiter;
    Sender* const sender = now.sender;
    is_writing_ = now.written < now.head_bytes + now.size_bytes;
    const bool is_told = !is_writing_ && waiter != nullptr;
    if (is_told) waiter->OnDone(absl::OkStatus());
    if (sender != nullptr) sender->OnLeaving(is_told);
  }
  return written > 0;
}

bool Outbox::Holds(const Sender& sender) const {
  const auto is_its = [&sender](const auto& entry) { return entry.sender == &sender; };
  return (is_writing_ && is_its(current_)) || std::any_of(short_.begin(), short_.end(), is_its) ||
         std::any_of(bodies_.begin(), bodies_.end(), is_its);
}

void Outbox::Fail(const absl::Status& status) {
  Waiters waiters;
  if (is_writing_) waiters.push_back(current_.waiter);
  for (const Short& message : short_) waiters.push_back(message.waiter);
  for (const Body& body : bodies_) waiters.push_back(body.waiter);
  for (const auto& [id, body] : offers_) waiters.push_back(body.waiter);
  is_writing_ = false;
  short_.clear();
  bodies_.clear();
  offers_.clear();
  Tell(waiters, status);
}

void Outbox::Forget(const Sender& sender, const absl::Status& status) {
  Waiters waiters;
  ForgetOffers(sender, &waiters);
  ForgetBodies(sender, &waiters);
  KeepShort(sender, &waiters);
  if (is_writing_ && current_.sender == &sender) Keep(current_, &waiters);
  Tell(waiters, status);
}

void Outbox::ForgetOffers(const Sender& sender, Waiters* waiters) {
  std::erase_if(short_, [&sender](const Short& entry) {
    return entry.sender == &sender && entry.frame.type == FrameType::kOffer;
  });
  std::erase_if(offers_, [&](const auto& offer) {
    if (offer.second.sender != &sender) return false;
    waiters->push_back(offer.second.waiter);
    return true;
  });
}

void Outbox::ForgetBodies(const Sender& sender, Waiters* waiters) {
  std::vector<uint64_t> ids;
  std::erase_if(bodies_, [&](const Body& body) {
    if (body.sender != &sender) return false;
    waiters->push_back(body.waiter);
    ids.push_back(body.id);
    return true;
  });
  for (const uint64_t id : ids) Put(FrameType::kWithdrawn, id);
}

void Outbox::KeepShort(const Sender& sender, Waiters* waiters) {
  for (Short& message : short_) {
    if (message.sender == &sender) Keep(message, waiters);
  }
}

void Outbox::Tell(const Waiters& waiters, const absl::Status& status) {
  for (network::Waiter* const waiter : waiters) {
    if (waiter != nullptr) waiter->OnDone(status);
  }
}

}  // namespace pelton::tcp
