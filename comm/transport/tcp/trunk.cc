#include "comm/transport/tcp/trunk.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/transport/tcp/connection.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::tcp {
namespace {

using network::Header;
using network::MessageType;
using network::Waiter;

constexpr uint64_t kListener = 0;
constexpr int kEventsPerLook = 32;
constexpr int kAcceptsPerLook = 64;
// Connections that have not said whose they are, beside the peers' own; then the oldest goes.
constexpr size_t kMaxStrangers = 64;
// How often the kernel is asked about connections, while there is nothing else to do, and peers
// that do not come are looked for.
constexpr absl::Duration kLookInterval = absl::Seconds(1);
// What a peer that cannot be sent to any more gets to say why.
constexpr absl::Duration kLastWords = absl::Seconds(1);
// A peer that has not taken everything by then loses what is left.
constexpr absl::Duration kLinger = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<std::unique_ptr<Trunk>> Trunk::Create(in_addr_t host, network::Members members) {
  std::unique_ptr<Trunk> trunk(new Trunk(host, std::move(members)));
  trunk->events_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!trunk->events_.is_open()) return SystemError("making an epoll");
  return trunk;
}

Trunk::Trunk(in_addr_t host, network::Members members)
    : host_(host), members_(std::move(members)), peers_(static_cast<size_t>(members_.size())) {}

// The kernel resets a connection that is closed with something unread, and throws away what it has
// not delivered; what has been delivered stays there to be read.
Trunk::~Trunk() {
  const absl::Time until = Clock::Real().Now() + kLinger;
  while (!HasArrived() && Clock::Real().Now() < until) sched_yield();
}

bool Trunk::HasArrived() {
  bool has_arrived = true;
  for (int32_t rank = 0; rank < members_.size(); ++rank) {
    const Peer& peer = At(Rank(rank));
    Write(Rank(rank));
    if (peer.state != State::kOpen) continue;
    has_arrived &= peer.outbox.is_empty() && IsDelivered(peer.connection->socket());
  }
  return has_arrived;
}

absl::StatusOr<uint32_t> Trunk::Join(Port& port) {
  // Also where this rank is to connect, because the peer connects to find out whether this rank has
  // ended.
  const bool opens_one =
      std::any_of(port.members().begin(), port.members().end(), [this](Rank member) {
        return members_.IsPeer(member.value()) && At(member).state != State::kOpen;
      });
  if (opens_one && !listener_.is_open()) RETURN_IF_ERROR(Listen());
  ++openings_;
  ports_[++last_port_] = &port;
  return last_port_;
}

absl::Status Trunk::Listen() {
  ASSIGN_OR_RETURN(listener_, tcp::Listen(host_, SOMAXCONN));
  address_ = AddressOf(listener_.get());
  return absl::OkStatus();
}

absl::Status Trunk::Watch(int operation, int socket, uint32_t events, uint64_t key) const {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = key;
  if (epoll_ctl(events_.get(), operation, socket, &event) == 0) return absl::OkStatus();
  return SystemError("watching a socket");
}

absl::Status Trunk::AcceptFrom(const std::set<uint32_t>& hosts) {
  admitted_ = hosts;
  if (!listener_.is_open() || std::exchange(is_admitting_, true)) return absl::OkStatus();
  return Watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListener);
}

void Trunk::EndOpening() {
  if (--openings_ > 0) return;
  listener_ = Descriptor();
  is_admitting_ = false;
  address_.clear();
  trouble_ = absl::OkStatus();
  knocks_.clear();
  std::erase_if(connections_, [](const auto& entry) { return !entry.second->peer().has_value(); });
}

void Trunk::Leave(Port& port, uint32_t number) {
  ports_.erase(number);
  const absl::Status closed = absl::CancelledError("tcp: closed");
  for (const Rank peer : port.members()) {
    At(peer).outbox.Forget(port, closed);
    LeaveOffers(port, peer);
  }
  if (!WriteOrphans().empty() && on_orphans_ != nullptr) on_orphans_();
}

std::vector<int> Trunk::WriteOrphans() {
  std::vector<int> waiting;
  for (int32_t rank = 0; rank < members_.size(); ++rank) {
    const Peer& peer = At(Rank(rank));
    if (!peer.outbox.HoldsOrphans()) continue;
    Write(Rank(rank));
    if (peer.state != State::kOpen || !peer.outbox.HoldsOrphans()) continue;
    waiting.push_back(peer.connection->socket());
  }
  return waiting;
}

absl::Status Trunk::Connect(Rank peer, const std::string& address) {
  Peer& to = At(peer);
  const bool was_never_open = to.state == State::kLost && !to.was_open;
  if (was_never_open || to.state == State::kApart) {
    to.state = State::kApart;
    to.address = address;
    if (peer > Rank(members_.rank())) return Dial(peer);
    to.state = State::kAwaited;
    to.since = Clock::Real().Now();
  }
  if (to.state == State::kAwaited) to.address = address;
  return absl::OkStatus();
}

absl::Status Trunk::LossOf(Rank peer) const {
  return At(peer).state == State::kLost ? At(peer).why : absl::OkStatus();
}

absl::Status Trunk::Dial(Rank peer) {
  const std::optional<sockaddr_in> to = ParseAddress(At(peer).address);
  if (!to) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp: rank ", peer.value(), " gives '", At(peer).address,
                     "' for its address, not <IPv4>:<port>; start all ranks from the same version "
                     "of Pelton"));
  }
  ASSIGN_OR_RETURN(Descriptor socket, tcp::Connect(host_, *to));
  ASSIGN_OR_RETURN(Connection* const connection, Add(std::move(socket), peer));
  Greet(peer, *connection);
  return absl::OkStatus();
}

absl::StatusOr<Connection*> Trunk::Add(Descriptor socket, std::optional<Rank> peer) {
  const uint64_t key = next_key_++;
  RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, socket.get(), EPOLLIN, key));
  auto made = std::make_unique<Connection>(*this, std::move(socket), key, peer);
  return (connections_[key] = std::move(made)).get();
}

void Trunk::Greet(Rank peer, Connection& connection) {
  Peer& to = At(peer);
  to.connection = &connection;
  to.state = State::kOpen;
  to.outbox.Greet(members_.MakeHeader(MessageType::kHello, peer.value()));
  Write(peer);
}

void Trunk::Send(Rank peer, const network::Worker::SendRequest& request, uint32_t to, Port& from) {
  At(peer).outbox.Put(request, to, from);
  Write(peer);
}

bool Trunk::Flush(Rank peer, const Port& port) {
  Write(peer);
  return At(peer).outbox.is_empty() || !At(peer).outbox.Holds(port);
}

void Trunk::Answer(const Offer& offer, FrameType type) { Note(offer.peer, {type, 0, offer.id, 0}); }

void Trunk::Note(Rank peer, const Frame& note) {
  if (!Reaches(peer)) return;
  At(peer).outbox.Put(note);
  Write(peer);
}

void Trunk::Write(Rank peer) {
  Peer& to = At(peer);
  if (to.state != State::kOpen) return;
  const absl::StatusOr<bool> moved = to.outbox.Write(to.connection->socket());
  if (!moved.ok()) return Deafen(peer, moved.status());
  if (to.outbox.is_overfull()) {
    return Deafen(peer, absl::ResourceExhaustedError("tcp: the peer reads nothing of its answers"));
  }
  const bool awaits_room = !to.outbox.is_empty();
  if (std::exchange(to.awaits_room, awaits_room) == awaits_room) return;
  const uint32_t events = awaits_room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  const absl::Status watched =
      Watch(EPOLL_CTL_MOD, to.connection->socket(), events, to.connection->key());
  if (!watched.ok()) Deafen(peer, watched);
}

void Trunk::Deafen(Rank peer, const absl::Status& why) {
  Peer& broken = At(peer);
  broken.state = State::kDeaf;
  broken.since = Clock::Real().Now();
  broken.why = why;
  broken.outbox.Fail(why);
  // What fails here is seen by the next read.
  Watch(EPOLL_CTL_MOD, broken.connection->socket(), EPOLLIN, broken.connection->key())
      .IgnoreError();
}

void Trunk::Lose(Rank peer, const absl::Status& why) {
  Peer& lost = At(peer);
  if (lost.state == State::kLost) return;
  lost.state = State::kLost;
  lost.why = why;
  if (Connection* const connection = std::exchange(lost.connection, nullptr)) Remove(*connection);
  lost.awaits_room = false;
  lost.outbox.Fail(why);
  std::erase_if(lost.offers, [](const auto& entry) { return entry.second->port == nullptr; });
  for (auto& [id, offer] : lost.offers) {
    if (Waiter* const waiter = std::exchange(offer->waiter, nullptr)) waiter->OnDone(why);
  }
  for (auto& [number, port] : ports_) {
    if (port->Lose(peer, why)) Rouse(*port);
  }
}

void Trunk::Remove(Connection& connection) { connections_.erase(connection.key()); }

void Trunk::Progress(const Port* by) {
  turn_of_ = by;
  std::array<epoll_event, kEventsPerLook> events;
  const int count = epoll_wait(events_.get(), events.data(), kEventsPerLook, 0);
  for (int i = 0; i < count; ++i) Handle(events[i].data.u64, events[i].events);
  // Among a busy peer's events, too, but rarely: it reads the clock.
  constexpr uint32_t kTurnsPerLook = 64;
  if (count == 0 || ++busy_turns_ % kTurnsPerLook == 0) LookAtSilence();
  turn_of_ = nullptr;
}

void Trunk::Handle(uint64_t key, uint32_t events) {
  if (key == kListener) return AcceptAll();
  if (knocks_.contains(key)) return EndKnock(key, events);
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  const std::optional<Rank> peer = connection.peer();
  if ((events & EPOLLOUT) != 0 && peer.has_value()) Write(*peer);
  if ((events & ~uint32_t{EPOLLOUT}) != 0) Read(connection);
}

void Trunk::AcceptAll() {
  for (int i = 0; i < kAcceptsPerLook && listener_.is_open(); ++i) {
    in_addr_t host = 0;
    absl::StatusOr<Descriptor> accepted = Accept(listener_.get(), &host);
    trouble_ = accepted.status();
    if (!accepted.ok() || !accepted->is_open()) break;
    if (!admitted_.contains(host)) continue;
    MakeRoomForStrangers();
    Add(*std::move(accepted), std::nullopt).IgnoreError();  // closed, then: the peer is told
  }
}

// A peer names its rank as soon as it is connected, so the oldest connection without a rank is not
// a peer's.
void Trunk::MakeRoomForStrangers() {
  if (connections_.size() < kMaxStrangers + 2 * peers_.size()) return;
  Connection* oldest = nullptr;
  for (const auto& [key, connection] : connections_) {
    const bool is_older = oldest == nullptr || key < oldest->key();
    if (!connection->peer().has_value() && is_older) oldest = connection.get();
  }
  if (oldest != nullptr) Remove(*oldest);
}

void Trunk::Read(Connection& connection) {
  const absl::StatusOr<bool> moved = connection.Read();
  const std::optional<Rank> peer = connection.peer();
  if (moved.ok()) {
    const bool has_body = peer.has_value() && connection.body_under_way() != 0;
    if (has_body) NoteBytes(*peer, connection.body_under_way());
  } else if (peer.has_value() && At(*peer).connection == &connection) {
    const Peer& from = At(*peer);
    Lose(*peer, from.state == State::kDeaf ? from.why : moved.status());
  } else {
    Remove(connection);
  }
}

void Trunk::NoteBytes(Rank peer, uint64_t id) {
  const auto found = At(peer).offers.find(id);
  if (found == At(peer).offers.end() || found->second->port == nullptr) return;
  found->second->port->OnMoved(/*by_another=*/false);
}

absl::StatusOr<Rank> Trunk::OnGreeting(Connection& connection, const Header& header) {
  if (header.type != MessageType::kHello || !members_.IsGenuine(header)) {
    return absl::UnauthenticatedError("tcp: a connection without this job's key was closed");
  }
  const Rank from(static_cast<int32_t>(header.source));
  Peer& peer = At(from);
  if (connection.peer().has_value()) {
    if (*connection.peer() != from) {
      return absl::InvalidArgumentError(
          absl::StrCat("tcp: rank ", from.value(), " answers at the address of rank ",
                       connection.peer()->value(), "; start the job again"));
    }
  } else {
    const bool is_due = peer.state == State::kApart || peer.state == State::kAwaited ||
                        (peer.state == State::kLost && !peer.was_open);
    if (from > Rank(members_.rank()) || !is_due) {
      return absl::InvalidArgumentError(
          absl::StrCat("tcp: rank ", from.value(), " has connected to rank ", members_.rank(),
                       ", which expects no connection from it; start all ranks from the same "
                       "version of Pelton"));
    }
    Greet(from, connection);
  }
  peer.was_open = true;
  return from;
}

void Trunk::LookAtSilence() {
  const absl::Time now = Clock::Real().Now();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  for (int32_t rank = 0; rank < members_.size(); ++rank) LookAt(Rank(rank), now);
}

void Trunk::LookAt(Rank rank, absl::Time now) {
  Peer& peer = At(rank);
  if (peer.state == State::kOpen && IsSilent(peer.connection->socket())) {
    Lose(rank, absl::UnavailableError("tcp: the peer's host does not answer"));
  } else if (peer.state == State::kDeaf && now - peer.since >= kLastWords) {
    Lose(rank, peer.why);
  } else if (peer.state == State::kAwaited && openings_ > 0 && now - peer.since >= kLookInterval &&
             !IsKnockedAt(rank)) {
    peer.since = now;
    Knock(rank);
  }
}

bool Trunk::IsKnockedAt(Rank peer) const {
  return std::any_of(knocks_.begin(), knocks_.end(),
                     [peer](const auto& entry) { return entry.second.peer == peer; });
}

// A peer that has ended before it connected would be waited for until the deadline.
void Trunk::Knock(Rank peer) {
  const std::optional<sockaddr_in> to = ParseAddress(At(peer).address);
  if (!to) return;
  absl::StatusOr<Descriptor> socket = tcp::Connect(host_, *to);
  if (!socket.ok()) return;  // no descriptor, perhaps: the next one tells
  const uint64_t key = next_key_++;
  if (!Watch(EPOLL_CTL_ADD, socket->get(), EPOLLOUT, key).ok()) return;
  knocks_[key] = {peer, *std::move(socket)};
}

void Trunk::EndKnock(uint64_t key, uint32_t events) {
  const auto found = knocks_.find(key);
  const Rank peer = found->second.peer;
  const absl::Status error = ErrorOf(found->second.socket.get());
  knocks_.erase(found);
  const bool is_refused = (events & (EPOLLERR | EPOLLHUP)) != 0;
  if (is_refused && At(peer).state == State::kAwaited) Lose(peer, error);
}

}  // namespace pelton::tcp
