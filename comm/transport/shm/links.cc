#include "comm/transport/shm/links.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton::shm {
namespace {

// How long a goodbye waits for room behind what the peers have not taken yet.
constexpr absl::Duration kLongestGoodbye = absl::Milliseconds(500);

Descriptor Duplicate(int descriptor) {
  return descriptor < 0 ? Descriptor() : Descriptor(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
}

std::pair<CommunicatorId, Generation> OpeningOf(const Frame& frame) {
  return {CommunicatorId(frame.communicator), Generation(frame.generation)};
}

}  // namespace

Links::Links(int rank, std::vector<Peer> peers, LossObserver on_loss)
    : rank_(rank),
      peers_(std::move(peers)),
      owner_(getpid()),
      on_loss_(std::move(on_loss)),
      links_(peers_.size()) {
  if (peers_.size() <= 1) return;
  watcher_.Start([this](std::vector<pollfd>& entries) { return Enter(entries); },
                 [this](const std::vector<pollfd>& entries) { LookAt(entries); });
}

Links::~Links() {
  if (getpid() != owner_) return;
  SayGoodbye();
  watcher_.Stop();
}

void Links::SayGoodbye() {
  MutexLock lock(&mutex_);
  if (std::exchange(has_said_goodbye_, true)) return;
  Frame frame;
  frame.type = Frame::kGoodbye;
  for (int peer = 0; peer < world_size(); ++peer) Post(peer, frame, -1);
  const auto is_waiting = [](const Link& link) { return !link.outbox.empty(); };
  const absl::Time deadline = Clock::Real().Now() + kLongestGoodbye;
  while (std::any_of(links_.begin(), links_.end(), is_waiting) &&
         !changed_.WaitWithDeadline(&mutex_, deadline)) {
  }
}

absl::Status Links::Register(const Region& region) {
  if (region.descriptor() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("region '", region.name(), "': adopted memory cannot be shared"));
  }
  if (IsUnshared(region.id())) return absl::OkStatus();  // like private memory from now on
  MutexLock lock(&mutex_);
  if (registered_[region.id().value()]++ > 0) return absl::OkStatus();
  Frame frame;
  frame.type = Frame::kRegister;
  frame.region = region.id().value();
  for (int peer = 0; peer < world_size(); ++peer) Post(peer, frame, region.descriptor());
  return absl::OkStatus();
}

void Links::Deregister(RegionId region) {
  MutexLock lock(&mutex_);
  auto entry = registered_.find(region.value());
  if (entry == registered_.end() || --entry->second > 0) return;
  registered_.erase(entry);
  Frame frame;
  frame.type = Frame::kDeregister;
  frame.region = region.value();
  for (int peer = 0; peer < world_size(); ++peer) Post(peer, frame, -1);
}

void Links::Lend(const Region& region, int peer) {
  Frame frame;
  frame.type = Frame::kRegister;
  frame.region = region.id().value();
  MutexLock lock(&mutex_);
  Post(peer, frame, region.descriptor());
}

void Links::EndLoan(RegionId region, int peer) {
  Frame frame;
  frame.type = Frame::kDeregister;
  frame.region = region.value();
  MutexLock lock(&mutex_);
  Post(peer, frame, -1);
}

Mapping::Pointer Links::FindRegion(int peer, RegionId region) {
  MutexLock lock(&mutex_);
  std::map<uint32_t, Mapping::Pointer>& regions = links_[peer].regions;
  auto found = regions.find(region.value());
  if (found == regions.end()) {
    // The peer sent it before it posted the operation that names it: it may lie unread. The end of
    // a connection the watcher will find again, but no message that was taken from it, such as a
    // goodbye of a peer whose process lives on.
    const absl::Status drained = Drain(peer);
    if (!drained.ok() && (!absl::IsUnavailable(drained) || links_[peer].said_goodbye)) {
      links_[peer].drained = drained;
      watcher_.Wake();
    }
    found = regions.find(region.value());
  }
  return found == regions.end() ? nullptr : found->second;
}

absl::Status Links::SendArena(int peer, CommunicatorId id, Generation generation, int descriptor) {
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(links_[peer].loss);
  Frame frame;
  frame.type = Frame::kOpen;
  frame.communicator = id.value();
  frame.generation = generation.value();
  Post(peer, frame, descriptor);
  return absl::OkStatus();
}

absl::StatusOr<Descriptor> Links::TakeArena(absl::Span<const Rank> members, CommunicatorId id,
                                            Generation generation, absl::Time deadline) {
  MutexLock lock(&mutex_);
  const OpeningId opening(id, generation);
  absl::StatusOr<Descriptor> arena = AwaitArena(members, opening, deadline);
  if (!arena.ok()) given_up_.insert(opening);
  return arena;
}

absl::StatusOr<Descriptor> Links::AwaitArena(absl::Span<const Rank> members,
                                             const OpeningId& opening, absl::Time deadline) {
  const int peer = members[0].value();
  std::deque<Message>& arenas = links_[peer].arenas;
  while (true) {
    for (auto arena = arenas.begin(); arena != arenas.end(); ++arena) {
      if (OpeningOf(arena->frame) == opening) {
        Descriptor descriptor = std::move(arena->attached);
        arenas.erase(arena);
        return descriptor;
      }
    }
    for (const Rank member : members) {
      RETURN_IF_ERROR(FindOpenFailure(member.value(), opening));
      RETURN_IF_ERROR(links_[member.value()].loss);
    }
    if (Clock::Real().Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("rank ", name(peer), " has not opened it"));
    }
    changed_.WaitWithDeadline(&mutex_,
                              std::min(deadline, Clock::Real().Now() + kInterruptInterval));
    mutex_.Unlock();  // a signal's handler must not hold up the watcher
    const absl::Status interrupted = CheckInterrupt();
    mutex_.Lock();
    RETURN_IF_ERROR(interrupted);
  }
}

void Links::TellOpenFailed(int peer, CommunicatorId id, Generation generation,
                           const absl::Status& why) {
  Frame frame;
  frame.type = Frame::kOpenFailed;
  frame.communicator = id.value();
  frame.generation = generation.value();
  frame.code = static_cast<int32_t>(why.code());
  MutexLock lock(&mutex_);
  Post(peer, frame, -1, CutToFit(why.message(), kMaxTextBytes));
}

absl::Status Links::FindOpenFailure(int peer, const OpeningId& opening) const {
  for (const Message& failure : links_[peer].open_failures) {
    const Frame& frame = failure.frame;
    if (OpeningOf(frame) != opening) continue;
    return absl::Status(
        static_cast<absl::StatusCode>(frame.code),
        absl::StrCat("rank ", name(peer), " has given up opening it: ", failure.payload));
  }
  return absl::OkStatus();
}

absl::Status Links::OpenFailureOf(int peer, CommunicatorId id, Generation generation) const {
  MutexLock lock(&mutex_);
  return FindOpenFailure(peer, {id, generation});
}

absl::Status Links::LossOf(int peer) const {
  MutexLock lock(&mutex_);
  return links_[peer].loss;
}

bool Links::HasLeft(int peer) const {
  MutexLock lock(&mutex_);
  return links_[peer].said_goodbye && !links_[peer].loss.ok();
}

void Links::Post(int peer, const Frame& frame, int attached, absl::string_view payload) {
  Link& link = links_[peer];
  if (peer == rank_ || !link.loss.ok()) return;
  if (link.outbox.empty()) {
    const absl::Status sent = Send(peers_[peer].socket.get(), frame, payload, attached);
    // A connection that broke is the watcher's to report.
    if (!absl::IsResourceExhausted(sent)) return;
  }
  Outgoing waiting{frame, std::string(payload), Duplicate(attached)};
  if (attached >= 0 && !waiting.attached.is_open()) {
    link.unsent = absl::ResourceExhaustedError(absl::StrCat("fcntl: ", ErrorText(errno)));
  } else {
    link.outbox.push_back(std::move(waiting));
  }
  watcher_.Wake();
}

void Links::Flush(int peer) {
  std::deque<Outgoing>& outbox = links_[peer].outbox;
  while (!outbox.empty()) {
    const Outgoing& next = outbox.front();
    const absl::Status sent =
        Send(peers_[peer].socket.get(), next.frame, next.payload, next.attached.get());
    if (absl::IsResourceExhausted(sent)) return;
    outbox.pop_front();
    if (outbox.empty()) changed_.SignalAll();
  }
}

absl::Status Links::Drain(int peer) {
  while (true) {
    absl::StatusOr<Message> message = Receive(peers_[peer].socket.get(), absl::InfinitePast());
    if (absl::IsDeadlineExceeded(message.status())) return absl::OkStatus();
    if (!message.ok()) return message.status();
    RETURN_IF_ERROR(TakeIn(peer, *std::move(message)));
  }
}

absl::Status Links::TakeIn(int peer, Message message) {
  Link& link = links_[peer];
  switch (message.frame.type) {
    case Frame::kRegister: {
      ASSIGN_OR_RETURN(link.regions[message.frame.region], Mapping::Of(message.attached.get()));
      return absl::OkStatus();
    }
    case Frame::kDeregister:
      link.regions.erase(message.frame.region);
      return absl::OkStatus();
    case Frame::kOpen:
      if (given_up_.contains(OpeningOf(message.frame))) return absl::OkStatus();
      link.arenas.push_back(std::move(message));
      changed_.SignalAll();
      return absl::OkStatus();
    case Frame::kOpenFailed:
      link.open_failures.push_back(std::move(message));
      changed_.SignalAll();
      return absl::OkStatus();
    case Frame::kGoodbye:
      link.said_goodbye = true;
      return absl::UnavailableError("left");
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("message of unknown type ", message.frame.type));
  }
}

// The reason if `peer` has just been lost.
std::optional<absl::Status> Links::Examine(int peer) {
  MutexLock lock(&mutex_);
  Link& link = links_[peer];
  if (!link.loss.ok()) return std::nullopt;
  Flush(peer);
  const absl::Status drained = link.drained.ok() ? Drain(peer) : link.drained;
  if (drained.ok() && link.unsent.ok()) return std::nullopt;
  const std::string who = absl::StrCat("rank ", name(peer), " (pid ", pid(peer), ")");
  if (link.said_goodbye) {
    link.loss = absl::UnavailableError(
        absl::StrCat(who,
                     " has left: its script ended or left the job before this rank was done "
                     "(did it fail, or have fewer batches?)"));
  } else if (drained.ok()) {
    link.loss = Annotate(
        link.unsent, absl::StrCat("rank ", name(rank_), " (pid ", owner_,
                                  ") cannot share with rank ", name(peer), " what that one needs"));
  } else if (absl::IsInvalidArgument(drained)) {
    link.loss = Annotate(drained, who);
  } else if (absl::IsResourceExhausted(drained)) {
    link.loss = Annotate(
        drained, absl::StrCat("rank ", name(rank_), " (pid ", owner_, ") cannot take in what rank ",
                              name(peer), " shares with it"));
  } else {
    link.loss = absl::UnavailableError(absl::StrCat(who, " died"));
  }
  link.outbox.clear();
  changed_.SignalAll();
  return link.loss;
}

absl::Time Links::Enter(std::vector<pollfd>& entries) {
  watched_.clear();
  has_news_ = false;
  MutexLock lock(&mutex_);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_ || !links_[peer].loss.ok()) continue;
    const short sending = links_[peer].outbox.empty() ? 0 : POLLOUT;
    entries.push_back({peers_[peer].socket.get(), static_cast<short>(POLLIN | sending), 0});
    watched_.push_back(peer);
    has_news_ |= !links_[peer].drained.ok() || !links_[peer].unsent.ok();
  }
  return has_news_ ? absl::InfinitePast() : absl::InfiniteFuture();
}

void Links::LookAt(const std::vector<pollfd>& entries) {
  for (size_t i = 0; i < watched_.size(); ++i) {
    if (entries[i].revents == 0 && !has_news_) continue;
    if (auto loss = Examine(watched_[i])) on_loss_(watched_[i], *loss);
  }
}

}  // namespace pelton::shm
