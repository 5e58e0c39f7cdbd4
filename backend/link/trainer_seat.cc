#include "backend/link/trainer_seat.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <set>
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
// Before the numbers of the ends of an epoch's trainers.
constexpr char kEndKey[] = "end/";
// A look at the coordinator, which answers at once when there is something to see, lasts so long. A
// trainer that has gone is looked after no longer. Each look costs both processes some wake-ups.
constexpr absl::Duration kLookSlice = absl::Seconds(3);
constexpr absl::Duration kOrderPatience = absl::Milliseconds(250);
// A process that was killed closes its connections within this time.
constexpr absl::Duration kEndPatience = absl::Seconds(2);
constexpr absl::Duration kNoticePatience = absl::Seconds(5);

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

std::string AbsenceText(Rank rank, int64_t pid, absl::string_view waits, absl::Time until) {
  return absl::StrCat(
      "rank ", rank.value(), "'s trainer (pid ", pid, ") is gone, its backend ", waits, " until ",
      absl::FormatTime("%H:%M:%S", ToWallTime(until), absl::LocalTimeZone()), " for another");
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
  std::list<Watcher> watchers;
  {
    MutexLock lock(&mutex_);
    seated_ = Trainer();
    watchers.swap(watchers_);
  }
  for (Watcher& watcher : watchers) watcher.thread.join();
}

absl::StatusOr<TrainerSeat::Claim> TrainerSeat::TakeSeat(int64_t pid,
                                                         std::shared_ptr<LinkSocket> socket) {
  const absl::Time patience = Clock::Real().Now() + kEndPatience;
  MutexLock lock(&mutex_);
  while (seated_.attachment != 0) {
    // One that has not been welcomed has nothing to leave behind; the thread that seats it may wait
    // for the other ranks for long.
    if (seated_.epoch == 0 && socket_->IsClosed()) break;
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
  return Claim{attachments_, former_, is_meeting_, meetings_};
}

// The trainers of all ranks meet by their daemons. When a trainer dies in a meeting, the next
// trainer of its rank goes on with that meeting, so that the other ranks do not wait for ever.
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
  // Nobody can join an epoch that has come to nothing.
  if (claim.former.has_value() && !HasEnd(claim.former->epoch, {proto::Order::ABORT}, deadline)) {
    return Inherit(claim, deadline);
  }
  {
    MutexLock lock(&mutex_);
    former_.reset();
    changed_.SignalAll();
  }
  const absl::StatusOr<uint64_t> epoch = Meet(claim, deadline);
  MutexLock lock(&mutex_);
  if (seated_.attachment != claim.attachment) {
    return absl::AbortedError("another trainer took this one's place");
  }
  if (!epoch.ok()) {
    Free();
    return epoch.status();
  }
  seated_.epoch = *epoch;
  backend_.absences().EndAll();  // those of an earlier epoch
  return seated_;
}

void TrainerSeat::Free() {
  seated_ = Trainer();
  vacant_since_ = Clock::Real().Now();
  changed_.SignalAll();
}

absl::Time TrainerSeat::TellPatience() const {
  return Clock::Real().Now() + backend_.options().heartbeat_timeout;
}

bool TrainerSeat::HasLostPeer(const Trainer& trainer) {
  return HasEnd(trainer.epoch, {proto::Order::ABORT, proto::Order::PEER_LEFT}, TellPatience());
}

bool TrainerSeat::HasEnd(uint64_t epoch, std::initializer_list<proto::Order::Kind> kinds,
                         absl::Time deadline) {
  KeyValueStore store(&backend_.control());
  for (int64_t number = 1;; ++number) {
    const std::string key = absl::StrCat(PrefixOf(epoch), kEndKey, number);
    if (!store.Check({key}, deadline).value_or(false)) return false;
    int32_t from = -1;
    proto::Order order;
    const absl::StatusOr<std::string> text = store.Get(key, deadline);
    const bool is_told = text.ok() && ParseEnd(*text, &from, &order);
    if (is_told && std::find(kinds.begin(), kinds.end(), order.kind()) != kinds.end()) return true;
  }
}

absl::StatusOr<TrainerSeat::Trainer> TrainerSeat::Inherit(const Claim& claim, absl::Time deadline) {
  Trainer heir;
  {
    MutexLock lock(&mutex_);
    if (seated_.attachment != claim.attachment) {
      return absl::AbortedError("another trainer took this one's place");
    }
    if (!former_.has_value()) {
      seated_ = Trainer();
      return absl::UnavailableError(
          absl::StrCat("the place of pid ", claim.former->pid,
                       " was kept no longer; start the trainers of all ranks again"));
    }
    former_.reset();
    inherited_ = claim.former->attachment;
    seated_.epoch = claim.former->epoch;
    seated_.is_heir = true;
    heir = seated_;
    changed_.SignalAll();
  }
  const absl::Status back = absl::UnavailableError(
      absl::StrCat("rank ", backend_.rank().value(), "'s trainer is back (pid ", heir.pid, ")"));
  const absl::Status told =
      Publish(heir, OrderOf(proto::Order::PEER_BACK, backend_.rank(), back), deadline);
  if (told.ok()) return heir;
  // The place is free again, for a trainer of an epoch to come.
  MutexLock lock(&mutex_);
  if (seated_.attachment == claim.attachment) {
    Free();
  }
  return told;
}

void TrainerSeat::Vacate(const Trainer& trainer, absl::Time until) {
  const Rank rank = backend_.rank();
  const absl::Status why = absl::UnavailableError(AbsenceText(rank, trainer.pid, "waits", until));
  (void)Publish(trainer, OrderOf(proto::Order::PEER_ABSENT, rank, why), TellPatience());
  MutexLock lock(&mutex_);
  former_ = trainer;
  heir_until_ = until;
  seated_ = Trainer();
  socket_.reset();
  changed_.SignalAll();
}

absl::Status TrainerSeat::AwaitHeir(const Trainer& trainer, const std::function<bool()>& gives_up) {
  MutexLock lock(&mutex_);
  while (former_.has_value() && former_->attachment == trainer.attachment) {
    const absl::Time now = Clock::Real().Now();
    const bool is_over = now >= heir_until_ || without_heir_ == trainer.attachment;
    // One that has begun to attach has the place.
    if ((is_over && seated_.attachment == 0) || gives_up()) {
      former_.reset();
      break;
    }
    changed_.WaitWithDeadline(&mutex_, now + kInterruptInterval);
  }
  if (inherited_ == trainer.attachment) return absl::OkStatus();
  vacant_since_ = Clock::Real().Now();
  const std::string who =
      absl::StrCat("rank ", backend_.rank().value(), "'s trainer (pid ", trainer.pid, ") is gone");
  if (without_heir_ == trainer.attachment) {
    return absl::UnavailableError(absl::StrCat(who, ", and nobody starts another one"));
  }
  if (vacant_since_ < heir_until_) {
    return absl::UnavailableError(
        absl::StrCat(who, ", and its backend ends before another one has come"));
  }
  return absl::UnavailableError(AbsenceText(backend_.rank(), trainer.pid, "waited", heir_until_));
}

void TrainerSeat::ExpectNoHeir() {
  MutexLock lock(&mutex_);
  without_heir_ = attachments_;
  changed_.SignalAll();
}

bool TrainerSeat::ExpectsHeir(const Trainer& trainer) const {
  MutexLock lock(&mutex_);
  return without_heir_ != trainer.attachment;
}

void TrainerSeat::Watch(const Trainer& trainer) {
  // Those of former trainers look at most a slice longer, for which nobody waits.
  std::list<Watcher> over;
  {
    MutexLock lock(&mutex_);
    if (seated_.attachment != trainer.attachment) return;
    for (auto at = watchers_.begin(); at != watchers_.end();) {
      const auto next = std::next(at);
      if (at->is_over) over.splice(over.end(), watchers_, at);
      at = next;
    }
    Watcher& watcher = watchers_.emplace_back();
    watcher.thread = std::thread([this, &watcher, trainer, socket = socket_] {
      FollowEnds(trainer, socket);
      watcher.is_over = true;
    });
  }
  for (Watcher& watcher : over) watcher.thread.join();
}

void TrainerSeat::TellOfEnd(const Trainer& trainer, const absl::Status& failure) {
  const Rank rank = backend_.rank();
  const proto::Order order =
      failure.ok() ? OrderOf(proto::Order::PEER_LEFT, rank, LeftReason(rank, trainer.pid))
                   : OrderOf(proto::Order::ABORT, rank, failure);
  // Where the job itself has failed the others know.
  (void)Publish(trainer, order, TellPatience());
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

absl::Status TrainerSeat::Report(const Trainer& trainer, const absl::Status& reason,
                                 absl::Time deadline) {
  return Publish(trainer, OrderOf(proto::Order::ABORT, backend_.rank(), reason), deadline);
}

// At the first number that is free. No number is ever skipped, because one operation takes the
// number and stores what it means. So a daemon that reads the ends in order never waits for one
// that does not come.
absl::Status TrainerSeat::Publish(const Trainer& trainer, const proto::Order& order,
                                  absl::Time deadline) {
  Note(order);
  if (backend_.world_size() == WorldSize(1)) return absl::OkStatus();
  KeyValueStore store(&backend_.control());
  const std::string text = absl::StrCat(backend_.rank().value(), " ", order.SerializeAsString());
  for (int64_t number = 1;; ++number) {
    const std::string key = absl::StrCat(PrefixOf(trainer.epoch), kEndKey, number);
    ASSIGN_OR_RETURN(const std::string there, store.CompareAndSet(key, "", text, deadline));
    if (there == text) return absl::OkStatus();
  }
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
  const absl::Time patience = Clock::Real().Now() + kOrderPatience;
  MutexLock lock(&mutex_);
  while (backend_.failure().ok() && !changed_.WaitWithDeadline(&mutex_, patience)) continue;
  const absl::Status failure = backend_.failure();
  return OrderOf(proto::Order::ABORT, backend_.rank(), failure.ok() ? found : failure);
}

// Either a trainer has ended, which its daemon says under the next key, or the job of the daemons.
// A trainer that has left in good order ends nothing by itself, so that more may follow.
void TrainerSeat::FollowEnds(Trainer trainer, std::shared_ptr<LinkSocket> socket) {
  std::set<int32_t> awaited;  // as the trainer has been told
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
    const bool is_last = notice.order().kind() == proto::Order::ABORT;
    // This rank knows what it has said itself. But nobody is awaited after its own abort either:
    // the daemon may have noted an absence since, and its trainer still waits for whom it was told
    // of.
    if (from == backend_.rank().value()) {
      if (!is_last) continue;
      for (const int32_t rank : awaited) {
        *notice.mutable_order() = OrderOf(proto::Order::PEER_BACK, Rank(rank), absl::OkStatus());
        (void)socket->Send(notice, Clock::Real().Now() + kNoticePatience);
      }
      backend_.absences().EndAll();
      return;
    }
    Note(notice.order());
    (void)socket->Send(notice, Clock::Real().Now() + kNoticePatience);
    if (is_last) return;
    if (notice.order().kind() == proto::Order::PEER_ABSENT) {
      awaited.insert(notice.order().culprit());
    } else {
      awaited.erase(notice.order().culprit());
    }
  }
}

void TrainerSeat::Note(const proto::Order& order) {
  const Rank culprit(order.culprit());
  if (order.kind() == proto::Order::PEER_ABSENT) {
    backend_.absences().Begin(culprit, order.message());
  } else if (order.kind() == proto::Order::ABORT) {
    backend_.absences().EndAll();  // all trainers have to attach anew
  } else {
    backend_.absences().End(culprit);
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

bool TrainerSeat::awaits_heir() const {
  MutexLock lock(&mutex_);
  return former_.has_value();
}

uint64_t TrainerSeat::attachments() const {
  MutexLock lock(&mutex_);
  return attachments_;
}

absl::Time TrainerSeat::VacantSince() const {
  MutexLock lock(&mutex_);
  const bool is_kept = seated_.attachment != 0 || former_.has_value();
  return is_kept ? absl::InfiniteFuture() : vacant_since_;
}

}  // namespace pelton
