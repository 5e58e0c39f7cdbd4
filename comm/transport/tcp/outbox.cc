#include "comm/transport/tcp/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/transport/tcp/connection.h"

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

// Tells `waiter` that its own has ended so, and `sender` that it was told; either may be null.
void Tell(network::Waiter* waiter, Sender* sender, const absl::Status& status) {
  if (waiter == nullptr) return;
  waiter->OnDone(status);
  if (sender != nullptr) sender->OnLeaving(/*is_told=*/true);
}

}  // namespace

void Outbox::Put(const network::Worker::SendRequest& request, uint32_t port, Sender& sender) {
  const auto* const data = static_cast<const std::byte*>(request.data);
  Short& message = short_.emplace_back();
  message.has_header = true;
  message.header = *request.header;
  message.frame.port = port;
  message.frame.size_bytes = request.size_bytes;
  message.sender = &sender;
  if (request.is_rendezvous) {
    message.frame.type = FrameType::kOffer;
    message.frame.id = ++last_id_;
    offers_[last_id_] = {last_id_, data, request.size_bytes, request.waiter, &sender};
  } else {
    message.data = data;
    message.size_bytes = request.size_bytes;
    message.waiter = request.waiter;
  }
}

void Outbox::Put(const Frame& note) { short_.emplace_back().frame = note; }

void Outbox::Greet(const network::Header& header) {
  Short& greeting = short_.emplace_front();
  greeting.frame.type = FrameType::kGreeting;
  greeting.has_header = true;
  greeting.header = header;
}

bool Outbox::Fetched(uint64_t id) {
  const auto found = offers_.find(id);
  if (found == offers_.end()) return false;
  const Body body = found->second;
  offers_.erase(found);
  auto share = ShareOf(body.sender);
  if (share == shares_.end()) share = shares_.insert(share, Share{body.sender, {}});
  share->bodies.push_back(body);
  return true;
}

void Outbox::Declined(uint64_t id) {
  if (const auto found = offers_.find(id); found != offers_.end()) {
    const Body body = found->second;
    offers_.erase(found);
    return Tell(body.waiter, body.sender, absl::OkStatus());
  }
  const std::optional<Body> body = TakeBody(id);
  if (!body.has_value()) return;  // all of it leaves, or the peer has been told
  // A piece of it that is under way leaves whole.
  if (is_writing_ && current_.body == id) {
    current_.waiter = body->waiter;
  } else {
    Tell(body->waiter, body->sender, absl::OkStatus());
  }
  Put({FrameType::kWithdrawn, 0, id, 0});
}

std::deque<Outbox::Share>::iterator Outbox::ShareOf(const Sender* sender) {
  return std::find_if(shares_.begin(), shares_.end(),
                      [sender](const Share& share) { return share.sender == sender; });
}

std::optional<Outbox::Body> Outbox::TakeBody(uint64_t id) {
  for (auto share = shares_.begin(); share != shares_.end(); ++share) {
    std::deque<Body>& bodies = share->bodies;
    const auto found =
        std::find_if(bodies.begin(), bodies.end(), [id](const Body& it) { return it.id == id; });
    if (found == bodies.end()) continue;
    const Body body = *found;
    bodies.erase(found);
    if (bodies.empty()) shares_.erase(share);
    return body;
  }
  return std::nullopt;
}

bool Outbox::Next() {
  if (short_.empty() && shares_.empty()) return false;
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
  Share share = std::move(shares_.front());
  shares_.pop_front();
  Body& body = share.bodies.front();
  Current& next = current_;
  next.data = body.data;
  next.size_bytes = std::min(body.size_bytes, kPieceBytes);
  next.sender = body.sender;
  next.body = body.id;
  const Frame frame{FrameType::kBody, 0, body.id, next.size_bytes};
  std::memcpy(next.head, &frame, sizeof frame);
  next.head_bytes = sizeof frame;
  body.data += next.size_bytes;
  body.size_bytes -= next.size_bytes;
  if (body.size_bytes == 0) {
    next.waiter = body.waiter;
    share.bodies.pop_front();
  }
  if (!share.bodies.empty()) shares_.push_back(std::move(share));
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
         std::any_of(shares_.begin(), shares_.end(), is_its);
}

bool Outbox::HoldsOrphans() const {
  return (is_writing_ && current_.sender == nullptr) ||
         std::any_of(short_.begin(), short_.end(),
                     [](const Short& entry) { return entry.sender == nullptr; });
}

void Outbox::Fail(const absl::Status& status) {
  std::vector<std::pair<network::Waiter*, Sender*>> ended;
  if (is_writing_) ended.emplace_back(current_.waiter, current_.sender);
  for (const Short& entry : short_) ended.emplace_back(entry.waiter, entry.sender);
  for (const Share& share : shares_) {
    for (const Body& body : share.bodies) ended.emplace_back(body.waiter, body.sender);
  }
  for (const auto& [id, body] : offers_) ended.emplace_back(body.waiter, body.sender);
  is_writing_ = false;
  short_.clear();
  shares_.clear();
  offers_.clear();
  for (const auto& [waiter, sender] : ended) Tell(waiter, sender, status);
}

void Outbox::Forget(const Sender& sender, const absl::Status& status) {
  Waiters waiters;
  ForgetOffers(sender, &waiters);
  ForgetBodies(sender, &waiters);
  KeepShort(sender, &waiters);
  if (is_writing_ && current_.sender == &sender) Keep(current_, &waiters);
  for (network::Waiter* const waiter : waiters) Tell(waiter, nullptr, status);
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
  const auto share = ShareOf(&sender);
  if (share == shares_.end()) return;
  for (const Body& body : share->bodies) {
    waiters->push_back(body.waiter);
    Put({FrameType::kWithdrawn, 0, body.id, 0});
  }
  shares_.erase(share);
}

void Outbox::KeepShort(const Sender& sender, Waiters* waiters) {
  for (Short& message : short_) {
    if (message.sender == &sender) Keep(message, waiters);
  }
}

}  // namespace pelton::tcp
