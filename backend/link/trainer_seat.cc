#include "backend/link/trainer_seat.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/control/key_value.h"
#include "comm/control/wire.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr char kAttachName[] = "link/attach";
// How many of an epoch's trainers have ended; behind the second one stands the end's number.
constexpr char kEndsKey[] = "ends";
constexpr char kEndKey[] = "end/";
// A look at the coordinator lasts so long; a trainer that has gone is looked after no longer.
constexpr absl::Duration kLookSlice = absl::Milliseconds(250);
// A process that was killed closes its connections within this time.
constexpr absl::Duration kEndPatience = absl::Seconds(2);
constexpr absl::Duration kNoticePatience = absl::Seconds(5);

bool IsGone(const LinkSocket& socket) {
  pollfd entry{socket.descriptor(), POLLRDHUP, 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

proto::Order OrderOf(proto::Order::Kind kind, Rank culprit, const absl::Status& reason) {
  proto::Order order;
  order.set_kind(kind);
  order.set_culprit(culprit.value());
  order.set_code(static_cast<int32_t>(reason.code()));
  order.set_message(std::string(reason.message().substr(0, limits::kMaxKeyBytes)));
  return order;
}

// The rank whose daemon has told of it, a blank, and the order.
bool ParseEnd(absl::string_view text, int32_t* from, proto::Order* order) {
  const size_t blank = text.find(' ');
  return blank != absl::string_view::npos && absl::SimpleAtoi(text.substr(0, blank), from) &&
         order->ParseFromString(std::string(text.substr(blank + 1)));
}

// As the transports say it where the ranks' processes are connected to each other.
absl::Status LeftReason(Rank rank, int64_t pid) {
  return absl::UnavailableError(
      absl::StrCat("rank ", rank.value(), " (pid ", pid,
                   ") has left: its script ended or left the job before this rank was done "
                   "(did it fail, or have fewer batches?)"));
}

}  // namespace

std::string TrainerSeat::PrefixOf(uint64_t epoch) { return absl::StrCat("trainers ", epoch, "/"); }

TrainerSeat::TrainerSeat(Backend* backend)
    : backend_(*backend), vacant_since_(Clock::Real().Now()) {}

TrainerSeat::~TrainerSeat() {
  std::thread watcher;
  {
    MutexLock lock(&mutex_);
    seated_ = Trainer();
    watcher.swap(watcher_);
  }
  if (watcher.joinable()) watcher.join();
}

absl::StatusOr<TrainerSeat::Claim> TrainerSeat::TakeSeat(int64_t pid,
                                                         std::shared_ptr<LinkSocket> socket) {
  const absl::Time patience = Clock::Real().Now() + kEndPatience;
  MutexLock lock(&mutex_);
  while (seated_.attachment != 0) {
    // One that has not been welcomed has nothing to leave behind; the thread that seats it may wait
    // for the other ranks for long.
    if (seated_.epoch == 0 && IsGone(*socket_)) break;
    const absl::Time now = Clock::Real().Now();
    if (now >= patience) {
      return absl::AlreadyExistsError(absl::StrCat(
          "rank ", backend_.rank().value(), " of job '", backend_.options().job,
          "' has a trainer already, pid ", seated_.pid, "; end it before another one attaches"));
    }
    changed_.WaitWithDeadline(&mutex_, now + kInterruptInterval);
  }
  seated_ = Trainer{++attachments_, 0, pid};
  socket_ = std::move(socket);
  return Claim{attachments_, is_meeting_, meetings_};
}

// The trainers of all ranks, by their daemons. A meeting that a trainer has begun who died is that
// of the next one, so that the others do not wait for one that never comes.
absl::StatusOr<uint64_t> TrainerSeat::Meet(const Claim& claim, absl::Time deadline) {
  uint64_t proposal = 0;
  {
    MutexLock lock(&mutex_);
    while (claim.joins_meeting && claim.meetings == meetings_) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return absl::DeadlineExceededError("the trainers of other ranks have not attached");
      }
    }
    if (claim.joins_meeting && met_.ok()) return epoch_;
    is_meeting_ = true;
    proposal = epoch_ + 1;
  }
  absl::StatusOr<std::vector<std::string>> proposals =
      backend_.control().AllGather(kAttachName, absl::StrCat(proposal), deadline);
  MutexLock lock(&mutex_);
  is_meeting_ = false;
  ++meetings_;
  met_ = proposals.status();
  changed_.SignalAll();
  RETURN_IF_ERROR(Annotate(met_, "waiting for the trainers of all ranks to attach"));
  for (const std::string& text : *proposals) {
    uint64_t number = 0;
    if (absl::SimpleAtoi(text, &number)) epoch_ = std::max(epoch_, number);
  }
  return epoch_;
}

absl::StatusOr<TrainerSeat::Trainer> TrainerSeat::Attach(int64_t pid,
                                                         std::shared_ptr<LinkSocket> socket,
                                                         absl::Time deadline) {
  RETURN_IF_ERROR(backend_.failure());
  ASSIGN_OR_RETURN(const Claim claim, TakeSeat(pid, std::move(socket)));
  const absl::StatusOr<uint64_t> epoch = Meet(claim, deadline);
  MutexLock lock(&mutex_);
  if (seated_.attachment != claim.attachment) {
    return absl::AbortedError("another trainer took this one's place");
  }
  if (!epoch.ok()) {
    seated_ = Trainer();
    vacant_since_ = Clock::Real().Now();
    changed_.SignalAll();
    return epoch.status();
  }
  seated_.epoch = *epoch;
  return seated_;
}

void TrainerSeat::Watch(const Trainer& trainer) {
  std::thread former;
  {
    MutexLock lock(&mutex_);
    if (seated_.attachment != trainer.attachment) return;
    former = std::exchange(
        watcher_, std::thread([this, trainer, socket = socket_] { FollowEnds(trainer, socket); }));
  }
  if (former.joinable()) former.join();  // it looks at most a slice longer
}

void TrainerSeat::TellOfEnd(const Trainer& trainer, const absl::Status& failure) {
  const Rank rank = backend_.rank();
  const proto::Order order =
      failure.ok() ? OrderOf(proto::Order::PEER_LEFT, rank, LeftReason(rank, trainer.pid))
                   : OrderOf(proto::Order::ABORT, rank, failure);
  // Where the job itself has failed the others know.
  (void)Publish(trainer, order, Clock::Real().Now() + kNoticePatience);
}

void TrainerSeat::TellOwn(const Trainer& trainer, const absl::Status& reason) {
  std::shared_ptr<LinkSocket> socket;
  {
    MutexLock lock(&mutex_);
    if (seated_.attachment != trainer.attachment) return;
    socket = socket_;
  }
  proto::LinkNotice notice;
  *notice.mutable_order() = OrderOf(proto::Order::ABORT, backend_.rank(), reason);
  // A trainer that takes nothing is stopped, or gone.
  if (socket != nullptr) (void)socket->Send(notice, Clock::Real().Now() + kEndPatience);
}

void TrainerSeat::Detach(const Trainer& trainer) {
  MutexLock lock(&mutex_);
  if (seated_.attachment != trainer.attachment) return;
  seated_ = Trainer();
  socket_.reset();
  vacant_since_ = Clock::Real().Now();
  changed_.SignalAll();
}

absl::Status TrainerSeat::Report(const Trainer& trainer, Rank culprit, const absl::Status& reason,
                                 absl::Time deadline) {
  return Publish(trainer, OrderOf(proto::Order::ABORT, culprit, reason), deadline);
}

// A daemon that dies between the two calls makes the job of the daemons fail, so that nobody waits
// for the missing key for long.
absl::Status TrainerSeat::Publish(const Trainer& trainer, const proto::Order& order,
                                  absl::Time deadline) {
  if (backend_.world_size() == WorldSize(1)) return absl::OkStatus();
  KeyValueStore store(&backend_.control());
  const std::string prefix = PrefixOf(trainer.epoch);
  ASSIGN_OR_RETURN(const int64_t number, store.Add(absl::StrCat(prefix, kEndsKey), 1, deadline));
  return store.Set(absl::StrCat(prefix, kEndKey, number),
                   absl::StrCat(backend_.rank().value(), " ", order.SerializeAsString()), deadline);
}

bool TrainerSeat::IsSeated(const Trainer& trainer) const {
  MutexLock lock(&mutex_);
  return seated_.attachment == trainer.attachment;
}

// Blocks: until an end of this number, or until nobody needs to be told of it, which is NotFound.
absl::StatusOr<std::string> TrainerSeat::AwaitEnd(const Trainer& trainer, int64_t number) {
  KeyValueStore store(&backend_.control());
  const std::string key = absl::StrCat(PrefixOf(trainer.epoch), kEndKey, number);
  absl::StatusOr<std::string> found = absl::DeadlineExceededError("");
  while (IsSeated(trainer) && absl::IsDeadlineExceeded(found.status())) {
    found = store.Get(key, Clock::Real().Now() + kLookSlice);
  }
  return IsSeated(trainer) ? found : absl::NotFoundError("another trainer");
}

// The order that says why comes at about the same time.
proto::Order TrainerSeat::OrderOfLostJob(const absl::Status& found) {
  const absl::Time patience = Clock::Real().Now() + kLookSlice;
  MutexLock lock(&mutex_);
  while (backend_.failure().ok() && !changed_.WaitWithDeadline(&mutex_, patience)) continue;
  const absl::Status failure = backend_.failure();
  return OrderOf(proto::Order::ABORT, backend_.rank(), failure.ok() ? found : failure);
}

// Either a trainer has ended, which its daemon says under the next key, or the job of the daemons.
// A trainer that has left in good order ends nothing by itself, so that more may follow.
void TrainerSeat::FollowEnds(Trainer trainer, std::shared_ptr<LinkSocket> socket) {
  for (int64_t number = 1;; ++number) {
    const absl::StatusOr<std::string> found = AwaitEnd(trainer, number);
    if (absl::IsNotFound(found.status())) return;
    proto::LinkNotice notice;
    int32_t from = -1;
    if (!found.ok()) {
      *notice.mutable_order() = OrderOfLostJob(found.status());
    } else if (!ParseEnd(*found, &from, notice.mutable_order())) {
      continue;
    }
    const bool is_last = notice.order().kind() != proto::Order::PEER_LEFT;
    // This rank knows what it has said itself.
    if (from != backend_.rank().value()) {
      (void)socket->Send(notice, Clock::Real().Now() + kNoticePatience);
    }
    if (is_last) return;
  }
}

absl::StatusOr<TrainerSeat::Trainer> TrainerSeat::Find(uint64_t attachment) const {
  MutexLock lock(&mutex_);
  if (attachment != 0 && seated_.attachment == attachment && seated_.epoch != 0) return seated_;
  return absl::FailedPreconditionError(absl::StrCat("attachment ", attachment, " of rank ",
                                                    backend_.rank().value(),
                                                    " is over; the trainer has to attach again"));
}

TrainerSeat::Trainer TrainerSeat::Current() const {
  MutexLock lock(&mutex_);
  return seated_;
}

uint64_t TrainerSeat::attachments() const {
  MutexLock lock(&mutex_);
  return attachments_;
}

absl::Time TrainerSeat::VacantSince() const {
  MutexLock lock(&mutex_);
  return seated_.attachment != 0 ? absl::InfiniteFuture() : vacant_since_;
}

}  // namespace pelton
