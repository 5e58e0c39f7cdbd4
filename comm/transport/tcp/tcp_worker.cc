#include "comm/transport/tcp/tcp_worker.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "comm/transport/tcp/socket.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::tcp {
namespace {

using network::Header;
using network::Payload;
using network::Waiter;

constexpr uint64_t kListener = std::numeric_limits<uint64_t>::max();
constexpr int kEventsPerLook = 32;
constexpr int kAcceptsPerLook = 64;
// Connections that have not said whose they are, beside the peers' own; then the oldest goes.
constexpr size_t kMaxStrangers = 64;
// How often the kernel is asked about connections, while there is nothing else to do.
constexpr absl::Duration kLookInterval = absl::Seconds(1);
// What a peer that cannot be sent to any more gets to say why.
constexpr absl::Duration kLastWords = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<TcpWorker>> TcpWorker::Create(in_addr_t host,
                                                             network::Receiver& receiver,
                                                             int peer_count) {
  std::unique_ptr<TcpWorker> worker(new TcpWorker(receiver, peer_count));
  RETURN_IF_ERROR(worker->Start(host));
  return worker;
}

TcpWorker::TcpWorker(network::Receiver& receiver, int peer_count)
    : receiver_(receiver),
      peers_(static_cast<size_t>(peer_count)),
      next_key_(static_cast<uint64_t>(peer_count)) {}

TcpWorker::~TcpWorker() { Close(); }

absl::Status TcpWorker::Start(in_addr_t host) {
  host_ = host;
  events_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!events_.is_open()) return SystemError("making an epoll");
  ASSIGN_OR_RETURN(listener_, Listen(host, SOMAXCONN));
  address_ = AddressOf(listener_.get());
  return absl::OkStatus();
}

absl::Status TcpWorker::Watch(int operation, int socket, uint32_t events, uint64_t key) const {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = key;
  if (epoll_ctl(events_.get(), operation, socket, &event) == 0) return absl::OkStatus();
  return SystemError("watching a socket");
}

absl::Status TcpWorker::Admit(const std::set<uint32_t>& hosts) {
  admitted_ = hosts;
  return Watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListener);
}

absl::Status TcpWorker::Bar() {
  listener_ = Descriptor();
  std::erase_if(incoming_, [](const auto& entry) { return entry.second->peer() < 0; });
  return absl::OkStatus();
}

absl::Status TcpWorker::Connect(int peer, const std::string& address) {
  const std::optional<sockaddr_in> to = ParseAddress(address);
  if (!to) return absl::InvalidArgumentError("tcp: a peer's address is none");
  ASSIGN_OR_RETURN(peers_[At(peer)].socket, tcp::Connect(host_, *to));
  return Watch(EPOLL_CTL_ADD, peers_[At(peer)].socket.get(), 0, static_cast<uint64_t>(peer));
}

absl::StatusOr<bool> TcpWorker::Send(int peer, const Parcel& parcel) {
  if (!IsConnected(peer)) return absl::UnavailableError("tcp: the connection is broken");
  peers_[At(peer)].outbox.Put(parcel);
  Write(peer);
  return false;
}

absl::StatusOr<bool> TcpWorker::Pull(const Payload& payload, void* target, Waiter* waiter) {
  Offer& offer = *static_cast<Offer*>(payload.data);
  if (!IsConnected(offer.peer)) return absl::UnavailableError("tcp: the connection is broken");
  offer.target = static_cast<std::byte*>(target);
  offer.left = offer.size_bytes;
  offer.waiter = waiter;
  Answer(offer, FrameType::kFetch);
  return false;
}

void TcpWorker::Release(const Payload& payload) {
  if (!payload.is_rendezvous) {
    blocks_.emplace_back(static_cast<std::byte*>(payload.data));
    return;
  }
  const Offer offer = *static_cast<Offer*>(payload.data);
  peers_[At(offer.peer)].offers.erase(offer.id);
  Answer(offer, FrameType::kDecline);
}

void TcpWorker::Answer(const Offer& offer, FrameType type) {
  if (!IsConnected(offer.peer)) return;
  peers_[At(offer.peer)].outbox.Put(type, offer.id);
  Write(offer.peer);
}

bool TcpWorker::Write(int peer) {
  Peer& to = peers_[At(peer)];
  const absl::StatusOr<bool> moved = to.outbox.Write(to.socket.get());
  if (!moved.ok()) {
    Break(peer, moved.status());
    return true;
  }
  const bool awaits_room = !to.outbox.is_empty();
  if (std::exchange(to.awaits_room, awaits_room) != awaits_room) {
    const absl::Status watched =
        Watch(EPOLL_CTL_MOD, to.socket.get(), awaits_room ? uint32_t{EPOLLOUT} : 0,
              static_cast<uint64_t>(peer));
    if (!watched.ok()) Break(peer, watched);
  }
  return *moved;
}

bool TcpWorker::IsHeard(int peer) const {
  return std::any_of(incoming_.begin(), incoming_.end(),
                     [peer](const auto& entry) { return entry.second->peer() == peer; });
}

// The peer is lost once it cannot be heard any more, as what it sent before its end still comes in;
// but it must end soon, because it waits for answers that cannot be sent.
void TcpWorker::Break(int peer, const absl::Status& why) {
  Peer& broken = peers_[At(peer)];
  broken.socket = Descriptor();
  broken.outbox.Fail(why);
  if (!IsHeard(peer)) return Lose(peer, why);
  if (broken.deaf_since) return;
  broken.deaf_since = Clock::Real().Now();
  broken.deafness = why;
}

void TcpWorker::Lose(int peer, const absl::Status& why) {
  Peer& lost = peers_[At(peer)];
  lost.deaf_since.reset();
  std::erase_if(incoming_, [peer](const auto& entry) { return entry.second->peer() == peer; });
  for (auto& [id, offer] : lost.offers) {
    if (Waiter* const waiter = std::exchange(offer->waiter, nullptr)) waiter->OnDone(why);
  }
  receiver_.Lose(peer, why);
}

bool TcpWorker::LookAtSilence() {
  const absl::Time now = Clock::Real().Now();
  if (now < next_look_) return false;
  next_look_ = now + kLookInterval;
  bool moved = false;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    Peer& state = peers_[At(peer)];
    if (IsConnected(peer) && IsSilent(state.socket.get())) {
      Break(peer, absl::UnavailableError("tcp: the peer's host does not answer"));
      moved = true;
    }
    if (state.deaf_since && now - *state.deaf_since >= kLastWords) {
      Lose(peer, state.deafness);
      moved = true;
    }
  }
  return moved;
}

bool TcpWorker::Progress() {
  std::array<epoll_event, kEventsPerLook> events;
  const int count = epoll_wait(events_.get(), events.data(), kEventsPerLook, 0);
  bool moved = false;
  for (int i = 0; i < count; ++i) moved |= Handle(events[i].data.u64, events[i].events);
  return moved || (count == 0 && LookAtSilence());
}

bool TcpWorker::Handle(uint64_t key, uint32_t events) {
  if (key == kListener) return AcceptAll();
  if (key >= peers_.size()) return ReadFrom(key);
  const auto peer = static_cast<int>(key);
  if (!IsConnected(peer)) return false;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
    Break(peer, ErrorOf(peers_[At(peer)].socket.get()));
    return true;
  }
  return Write(peer);
}

bool TcpWorker::AcceptAll() {
  for (int i = 0; i < kAcceptsPerLook && listener_.is_open(); ++i) {
    in_addr_t host = 0;
    absl::StatusOr<Descriptor> accepted = Accept(listener_.get(), &host);
    trouble_ = accepted.status();
    if (!accepted.ok() || !accepted->is_open()) break;
    if (!admitted_.contains(host)) continue;
    MakeRoomForStrangers();
    const uint64_t key = next_key_++;
    if (!Watch(EPOLL_CTL_ADD, accepted->get(), EPOLLIN, key).ok()) continue;
    incoming_[key] = std::make_unique<Incoming>(*this, *std::move(accepted));
  }
  return true;
}

// A peer says who it is as soon as it is connected, so the oldest stranger is none.
void TcpWorker::MakeRoomForStrangers() {
  if (incoming_.size() < kMaxStrangers + 2 * peers_.size()) return;
  auto oldest = incoming_.end();
  for (auto entry = incoming_.begin(); entry != incoming_.end(); ++entry) {
    const bool is_older = oldest == incoming_.end() || entry->first < oldest->first;
    if (entry->second->peer() < 0 && is_older) oldest = entry;
  }
  if (oldest != incoming_.end()) incoming_.erase(oldest);
}

bool TcpWorker::ReadFrom(uint64_t key) {
  const auto found = incoming_.find(key);
  if (found == incoming_.end()) return false;
  const absl::StatusOr<bool> moved = found->second->Read();
  if (moved.ok()) return *moved;
  const int peer = found->second->peer();
  incoming_.erase(key);
  if (peer >= 0 && !IsHeard(peer)) Break(peer, moved.status());
  return true;
}

absl::Status TcpWorker::Incoming::OnFrame(const Frame& frame, const Header& header,
                                          const std::byte* payload) {
  const bool has_header = frame.type == FrameType::kMessage || frame.type == FrameType::kOffer;
  if (peer_ < 0) {
    if (!has_header || header.source >= worker_.peers_.size() || !worker_.receiver_.Knows(header)) {
      return absl::UnauthenticatedError("tcp: a stranger");
    }
    peer_ = static_cast<int>(header.source);
  }
  if (has_header && header.source != static_cast<uint32_t>(peer_)) {
    return absl::InvalidArgumentError("tcp: a frame speaks for another rank");
  }
  Outbox& outbox = worker_.peers_[At(peer_)].outbox;
  switch (frame.type) {
    case FrameType::kMessage:
      worker_.Arrive(header, payload, frame.size_bytes);
      return absl::OkStatus();
    case FrameType::kOffer:
      return worker_.ArriveOffer(peer_, frame, header);
    case FrameType::kFetch:
      // Of what has failed meanwhile nothing is offered any more.
      if (outbox.Fetched(frame.id)) worker_.Write(peer_);
      return absl::OkStatus();
    case FrameType::kDecline:
      outbox.Declined(frame.id);
      return absl::OkStatus();
    case FrameType::kBody:
      break;
  }
  return absl::InvalidArgumentError("tcp: a frame of no known type");
}

absl::StatusOr<std::byte*> TcpWorker::Incoming::OnBody(const Frame& frame) {
  if (peer_ < 0) return absl::UnauthenticatedError("tcp: a stranger");
  auto& offers = worker_.peers_[At(peer_)].offers;
  const auto found = offers.find(frame.id);
  const bool is_fetched = found != offers.end() && found->second->waiter != nullptr;
  if (!is_fetched || frame.size_bytes == 0 || frame.size_bytes > found->second->left) {
    return absl::InvalidArgumentError("tcp: bytes that nobody asked for");
  }
  const Offer& offer = *found->second;
  return offer.target + (offer.size_bytes - offer.left);
}

void TcpWorker::Incoming::OnBodyDone(const Frame& frame) {
  auto& offers = worker_.peers_[At(peer_)].offers;
  const auto found = offers.find(frame.id);
  Offer& offer = *found->second;
  offer.left -= frame.size_bytes;
  if (offer.left > 0) return;
  Waiter* const waiter = offer.waiter;
  offers.erase(found);
  if (waiter != nullptr) waiter->OnDone(absl::OkStatus());
}

void TcpWorker::Arrive(const Header& header, const std::byte* payload, size_t size_bytes) {
  if (size_bytes == 0) {
    receiver_.Receive(header, {});
    return;
  }
  std::unique_ptr<std::byte[]> block = TakeBlock();
  std::memcpy(block.get(), payload, size_bytes);
  if (receiver_.Receive(header, {block.get(), size_bytes, false})) {
    block.release();  // Release brings it back
  } else {
    blocks_.push_back(std::move(block));
  }
}

std::unique_ptr<std::byte[]> TcpWorker::TakeBlock() {
  if (blocks_.empty()) return std::make_unique<std::byte[]>(kMaxMessageBytes);
  std::unique_ptr<std::byte[]> block = std::move(blocks_.back());
  blocks_.pop_back();
  return block;
}

absl::Status TcpWorker::ArriveOffer(int peer, const Frame& frame, const Header& header) {
  // The receiver may still hold the earlier one of that number.
  if (peers_[At(peer)].offers.contains(frame.id) || frame.size_bytes == 0) {
    return absl::InvalidArgumentError("tcp: an offer that is none");
  }
  auto offer = std::make_unique<Offer>(Offer{peer, frame.id, frame.size_bytes});
  const Payload payload{offer.get(), frame.size_bytes, true};
  peers_[At(peer)].offers[frame.id] = std::move(offer);
  if (!receiver_.Receive(header, payload)) Release(payload);
  return absl::OkStatus();
}

bool TcpWorker::Flush() {
  bool is_flushed = true;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (IsConnected(peer)) Write(peer);
    is_flushed &= !IsConnected(peer) || peers_[At(peer)].outbox.is_empty();
  }
  return is_flushed;
}

void TcpWorker::Close() {
  const absl::Status closed = absl::CancelledError("tcp: closed");
  listener_ = Descriptor();
  incoming_.clear();
  for (Peer& peer : peers_) {
    peer.socket = Descriptor();
    peer.outbox.Fail(closed);
    for (auto& [id, offer] : peer.offers) {
      if (Waiter* const waiter = std::exchange(offer->waiter, nullptr)) waiter->OnDone(closed);
    }
    peer.offers.clear();
  }
  events_ = Descriptor();
}

}  // namespace pelton::tcp
