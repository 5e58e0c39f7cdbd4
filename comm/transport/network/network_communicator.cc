#include "comm/transport/network/network_communicator.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/operation_check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::network {
namespace {

// Looking at a socket costs a system call, which gives the peer time as well.
constexpr int kSpins = 10;
// A peer whose connection broke may have aborted and said so on another one.
constexpr absl::Duration kSuspicion = absl::Milliseconds(300);
constexpr absl::Duration kSuspicionLook = absl::Milliseconds(5);
// How long an abort may take to reach the peers, and how long a close may wait for messages under
// way. Both are bounded, because a dead peer reads nothing.
constexpr absl::Duration kTellTime = absl::Milliseconds(200);
constexpr absl::Duration kByeTime = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<std::unique_ptr<NetworkCommunicator>> NetworkCommunicator::Create(
    std::unique_ptr<Conversation> conversation, Intercom& intercom, OnClose on_close) {
  auto communicator =
      std::make_unique<NetworkCommunicator>(std::move(conversation), intercom, on_close);
  communicator->wake_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (communicator->wake_.is_open()) {
    communicator->ListenForRouse();
    return communicator;
  }
  return absl::ResourceExhaustedError(absl::StrCat("network: eventfd: ", std::strerror(errno)));
}

NetworkCommunicator::NetworkCommunicator(std::unique_ptr<Conversation> conversation,
                                         Intercom& intercom, OnClose on_close)
    : intercom_(intercom),
      on_close_(std::move(on_close)),
      mutex_(conversation->mutex()),
      conversation_(std::move(conversation)),
      members_(conversation_->members()) {}

NetworkCommunicator::~NetworkCommunicator() {
  on_close_(this, nullptr);
  {
    MutexLock lock(&mutex_);
    conversation_->set_rouse(nullptr);
    if (!conversation_->point_to_point().is_idle()) {
      Throw(absl::CancelledError("closed with operations in flight"), Origin::kHere);
    }
  }
  const absl::Time until = Clock::Real().Now() + kByeTime;
  FinishAbort();
  while (!SayGoodbye() && Clock::Real().Now() < until) sched_yield();
  if (std::unique_ptr<Conversation> conversation = TakeConversation())
    on_close_(this, std::move(conversation));
}

std::unique_ptr<Conversation> NetworkCommunicator::TakeConversation() {
  MutexLock lock(&mutex_);
  return stage_ == Stage::kOpen ? std::move(conversation_) : nullptr;
}

void NetworkCommunicator::ListenForRouse() {
  MutexLock lock(&mutex_);
  conversation_->set_rouse([this] {
    mutex_.AssertHeld();
    if (is_parked_) Wake();
  });
}

int NetworkCommunicator::spins() const { return kSpins; }

absl::StatusOr<Completion> NetworkCommunicator::Launch(const Operation& operation, Stream& stream) {
  if (stream.device() != DeviceKind::kHost) {
    return absl::InvalidArgumentError("stream: this transport works on host memory only");
  }
  MutexLock lock(&mutex_);
  if (ended_.is_given()) return ended_.Get();
  RETURN_IF_ERROR(CheckOperation(operation, rank(), world_size()));
  if (!IsPointToPoint(operation.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", members_.rank(), ": kind: ", NameOf(operation.kind),
                     " is not one of this transport, which only sends and receives"));
  }
  ASSIGN_OR_RETURN(const OperationMemory memory, ResolveOperation(operation, rank(), world_size()));
  PointToPoint& point_to_point = conversation_->point_to_point();
  if (!point_to_point.HasRoom()) {
    return absl::ResourceExhaustedError(absl::StrCat("rank ", members_.rank(), ": ",
                                                     limits::kMaxOperationsInFlight,
                                                     " operations are in flight"));
  }
  Operation checked = operation;
  checked.communicator = members_.id();
  checked.generation = members_.generation();
  const absl::StatusOr<uint64_t> ticket = point_to_point.Start(
      checked, operation.kind == OperationKind::kSend ? memory.source : memory.target);
  if (!ticket.ok()) {
    const std::string who = absl::StrCat("rank ", members_.WorldRankOf(operation.peer).value());
    const absl::Status left = absl::UnavailableError(absl::StrCat(who, " has left"));
    const absl::Status lost = Annotate(ticket.status(), absl::StrCat(who, " is lost"));
    Throw(conversation_->HasLeft(operation.peer) ? left : lost, Origin::kDeath);
    return ended_.Get();
  }
  ProgressLocked();  // shows it to the peer at once
  return Completion{*ticket};
}

absl::StatusOr<std::optional<Rank>> NetworkCommunicator::FindSender(int32_t tag) {
  MutexLock lock(&mutex_);
  if (ended_.is_given()) return ended_.Get();
  const int peer = conversation_->point_to_point().FindSender(tag);
  if (peer != kNoPeer) return Rank(peer);
  if (conversation_->IsOver()) return absl::NotFoundError("all other ranks have left");
  return std::nullopt;
}

bool NetworkCommunicator::Progress() {
  MutexLock lock(&mutex_);
  return ProgressLocked();
}

bool NetworkCommunicator::ProgressLocked() {
  if (ended_.is_given()) return AdvanceAbort();
  PointToPoint& point_to_point = conversation_->point_to_point();
  const bool moved = conversation_->worker().Progress();
  Examine();
  if (ended_.is_given()) return AdvanceAbort();
  // A worker also moves for its connections' sake; without an operation in flight that is no
  // progress, and a caller that spun on would never park.
  const bool has_changed = point_to_point.events() != events_seen_;
  events_seen_ = point_to_point.events();
  return has_changed || (moved && !point_to_point.is_idle());
}

void NetworkCommunicator::Examine() {
  if (!conversation_->aborted().ok()) {
    Throw(conversation_->aborted(), Origin::kPeer);
    return;
  }
  for (int peer = 0; conversation_->HasGaps() && peer < members_.size(); ++peer) {
    if (!conversation_->LossOf(peer).ok() || conversation_->HasLeft(peer)) ExamineLoss(peer);
  }
  const absl::Status& failure = conversation_->point_to_point().failure();
  if (failure.ok() || ended_.is_given()) return;
  if (!suspect_) suspect_ = Clock::Real().Now();
  // The worker reports a broken connection itself; this is for a transfer that fails alone.
  if (Clock::Real().Now() - *suspect_ > kSuspicion) Throw(failure, Origin::kHere);
}

void NetworkCommunicator::ExamineLoss(int peer) {
  const int32_t rank = members_.WorldRankOf(peer).value();
  if (conversation_->HasLeft(peer)) {
    if (!members_.IsPeer(peer) || !conversation_->point_to_point().Needs(peer)) return;
    Throw(absl::UnavailableError(
              absl::StrCat("rank ", rank,
                           " has left: its script ended or left the job before this "
                           "rank was done (did it fail, or have fewer batches?)")),
          Origin::kDeath);
    return;
  }
  const absl::Time now = Clock::Real().Now();
  if (!suspect_) suspect_ = now;
  const absl::Status news = intercom_.NewsOf(members_);
  if (!news.ok()) {
    Throw(news, absl::StartsWith(news.message(), absl::StrCat("rank ", rank, " is lost"))
                    ? Origin::kDeath
                    : Origin::kPeer);
  } else if (now - *suspect_ > kSuspicion) {
    Throw(Annotate(conversation_->LossOf(peer), absl::StrCat("rank ", rank, " is lost")),
          Origin::kDeath);
  }
}

void NetworkCommunicator::Throw(const absl::Status& reason, Origin origin) {
  if (ended_.Give(reason)) origin_ = origin;
}

void NetworkCommunicator::Tell() {
  stage_ = Stage::kTelling;
  since_ = Clock::Real().Now();
  if (origin_ == Origin::kPeer) return;  // the peer tells the others itself
  const uint8_t flags = origin_ == Origin::kDeath ? kIsDeath : 0;
  Header like;
  like.flags = flags;
  const std::string text = EncodeReason(ended_.Get(), &like);
  conversation_->PostAll(like, text);
  intercom_.TellAbort(members_, ended_.Get(), flags);
}

bool NetworkCommunicator::AdvanceAbort() {
  if (stage_ == Stage::kClosed) return false;
  if (stage_ == Stage::kOpen) Tell();
  conversation_->worker().Progress();
  // Both, whatever the first says.
  const bool members_are_told = conversation_->worker().Flush();
  const bool is_told = intercom_.IsTold() && members_are_told;
  if (!is_told && Clock::Real().Now() - *since_ < kTellTime) return true;
  // The worker may still be writing into the receives' memory; once closed it cannot (OWN-1).
  conversation_->point_to_point().DropArrivals();
  conversation_->worker().Close();
  conversation_->point_to_point().Cancel(ended_.Get());
  stage_ = Stage::kClosed;
  return true;
}

OperationRunner::State NetworkCommunicator::Query(Completion completion) {
  MutexLock lock(&mutex_);
  State state = conversation_->point_to_point().Query(completion.ticket);
  if (!state.done && ended_.is_given()) {
    AdvanceAbort();
    state = conversation_->point_to_point().Query(completion.ticket);
  }
  return state;
}

std::optional<int> NetworkCommunicator::BeginPark() {
  if (ProgressLocked()) return std::nullopt;
  if (stage_ == Stage::kClosed) return -1;
  if (!conversation_->worker().Arm()) return std::nullopt;
  return conversation_->worker().descriptor();
}

// A thread that drives another communicator may take from the shared descriptor what came for this
// one. It holds the mutex then: either this thread has not looked yet and finds it, or it has said
// that it parks, and is woken.
void NetworkCommunicator::Park(absl::Time until) {
  pollfd files[2] = {{wake_.get(), POLLIN, 0}, {-1, POLLIN, 0}};
  {
    MutexLock lock(&mutex_);
    const std::optional<int> descriptor = BeginPark();
    if (!descriptor) return;
    files[1].fd = *descriptor;
    if (suspect_) until = std::min(until, Clock::Real().Now() + kSuspicionLook);
    is_parked_ = true;
  }
  const absl::Duration left = std::max(until - Clock::Real().Now(), absl::ZeroDuration());
  const timespec timeout = absl::ToTimespec(std::min(left, absl::Hours(1)));
  if (ppoll(files, 2, &timeout, nullptr) > 0 && files[0].revents != 0) {
    uint64_t count = 0;
    while (read(wake_.get(), &count, sizeof count) > 0) {
    }
  }
  MutexLock lock(&mutex_);
  is_parked_ = false;
}

void NetworkCommunicator::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the Park ends anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void NetworkCommunicator::Announce(const absl::Status& reason) {
  ended_.Give(reason);
  Wake();
  MutexLock lock(&mutex_);
  if (stage_ == Stage::kOpen) AdvanceAbort();
}

void NetworkCommunicator::Abort(const absl::Status& reason) {
  Announce(reason);
  // The thread that runs the operations may be elsewhere for long, and the caller that awaits them
  // takes their memory back when this returns. That thread holds the mutex for bounded work only.
  FinishAbort();
}

bool NetworkCommunicator::SayGoodbye() {
  MutexLock lock(&mutex_);
  // An abort tells more.
  return ended_.is_given() || stage_ != Stage::kOpen || conversation_->SayBye();
}

void NetworkCommunicator::FinishAbort() {
  while (ended_.is_given()) {
    {
      MutexLock lock(&mutex_);
      if (stage_ == Stage::kClosed) return;
      AdvanceAbort();
    }
    sched_yield();
  }
}

std::vector<Rank> NetworkCommunicator::Missing() const {
  MutexLock lock(&mutex_);
  const int peer = conversation_->point_to_point().oldest_peer();
  if (peer == kNoPeer) return {};
  return {Rank(peer)};
}

}  // namespace pelton::network
