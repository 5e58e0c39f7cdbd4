#include "comm/window/link_actor.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/reduction/linear_combination.h"
#include "comm/window/edge_runs.h"
#include "core/actor/context.h"
#include "core/actor/wait_hook.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// News from the wire end a park at once; this bounds what a lost one costs.
constexpr absl::Duration kPark = absl::Milliseconds(20);
// A mutex that a process of this host gives back kicks nobody here.
constexpr absl::Duration kMutexPark = absl::Milliseconds(1);
// How often, and how long each time, the end waits for what an abort has not ended yet.
constexpr int kMostLooks = 2000;
constexpr absl::Duration kLookInterval = absl::Milliseconds(1);

absl::Status FreedError() { return absl::NotFoundError("the other rank has freed the window"); }

}  // namespace

absl::StatusOr<std::optional<LinkMessage>> LinkActor::Inbox::Take() {
  if (!under_way_.has_value()) {
    ASSIGN_OR_RETURN(const std::optional<Rank> sender, communicator_.FindSender(kLinkMessageTag));
    if (!sender.has_value()) return std::nullopt;
    ASSIGN_OR_RETURN(under_way_, Recv(communicator_, {&message_, sizeof message_, DType::kUInt8},
                                      *sender, kLinkMessageTag));
  }
  const OperationRunner::State state = communicator_.Query(*under_way_);
  if (!state.done) return std::nullopt;
  under_way_.reset();
  RETURN_IF_ERROR(state.status);
  return message_;
}

LinkActor::LinkActor(Communicator* communicator, Rank peer, std::atomic<bool>* waits_for_mutex)
    : communicator_(*communicator),
      peer_(peer),
      other_(communicator->rank() == Rank(0) ? 1 : 0),
      waits_for_mutex_(*waits_for_mutex),
      inbox_(communicator_) {}

LinkActor::~LinkActor() {
  if (!is_closed()) Break(absl::CancelledError("the link was closed"));
}

// A turn has failed. A caller gets the error when nothing reads or writes its memory any more
// (OWN-1).
void LinkActor::OnStop(const absl::Status& why) {
  if (why.ok()) return;
  if (!is_closed()) Break(why);
  communicator_.Abort(broken_);
  for (int look = 0; look < kMostLooks && Poll() != PollResult::kNothingToDo; ++look) {
    // A simulation's time stands still in a turn.
    if (WaitHook::Current() == nullptr) communicator_.Park(WaitClock().Now() + kLookInterval);
  }
}

absl::Duration LinkActor::MaxPark() const { return waiting_.empty() ? kPark : kMutexPark; }

void LinkActor::Handle(AskPeer ask) {
  if (is_closed()) return ask.reply.Set(broken_);
  const uint64_t number = ++asked_count_;
  Question& question = questions_[number];
  question.asked = ask.question;
  question.asked.request.number = number;
  question.reply = std::move(ask.reply);
  if (const absl::Status sent = Ask(number); !sent.ok()) Break(sent);
}

void LinkActor::Handle(ServeWindow serve) {
  if (!is_closed()) served_.insert_or_assign(serve.window, std::move(serve.served));
  serve.reply.Set(broken_);
}

void LinkActor::Handle(StopServing stop) {
  GiveBack(stop.window);
  std::vector<WaitingLock> waiting;
  std::swap(waiting, waiting_);
  for (WaitingLock& lock : waiting) {
    if (lock.request.window != stop.window) {
      waiting_.push_back(std::move(lock));
    } else if (const absl::Status told =
                   Reply(LinkReply::To(lock.request.number, FreedError()), stop.window);
               !told.ok()) {
      Break(told);
    }
  }
  stops_.push_back(std::move(stop));
  SettleStops();
}

void LinkActor::Handle(CloseLink close) {
  closers_.push_back(std::move(close.reply));
  if (is_closed()) return;
  const absl::Status why = absl::FailedPreconditionError("the job of these windows has ended");
  if (HasTransfers()) return Break(why);
  broken_ = why;
  GiveAllBack();
  SayGoodbye();
}

void LinkActor::SayGoodbye() {
  goodbye_.request.call = LinkCall::kLeave;
  const absl::Status said =
      SendBytes(&goodbye_, sizeof goodbye_, kLinkMessageTag, goodbye_transfers_);
  if (!said.ok()) communicator_.Abort(broken_);
}

// Also once the other rank has left, which then takes no goodbye. A message that is coming in is
// awaited, because its memory is this object's.
bool LinkActor::HasSaidGoodbye() {
  if (AreDone(goodbye_transfers_) && inbox_.is_idle()) return true;
  const absl::StatusOr<std::optional<LinkMessage>> last = inbox_.Take();
  const bool is_alone =
      !last.ok() || (last->has_value() && (*last)->request.call == LinkCall::kLeave);
  if (is_alone && !AreDone(goodbye_transfers_)) communicator_.Abort(broken_);  // ends the sending
  return AreDone(goodbye_transfers_) && inbox_.is_idle();
}

bool LinkActor::HasTransfers() const {
  return !questions_.empty() || !departures_.empty() || arrival_.has_value() || !inbox_.is_idle();
}

PollResult LinkActor::Poll() {
  bool moved = communicator_.Progress();
  if (!is_closed()) {
    const absl::StatusOr<bool> advanced = Advance();
    if (!advanced.ok()) Break(advanced.status());
    moved = moved || !advanced.ok() || *advanced;
  }
  // Also what a broken link leaves is settled, because its memory is somebody's.
  if (is_closed() && arrival_.has_value() && IsOver(*arrival_)) arrival_.reset();
  if (SettleQuestions()) moved = true;
  if (SettleDepartures()) moved = true;
  if (SettleStops()) moved = true;
  if (!is_closed()) return moved ? PollResult::kMoved : PollResult::kIdle;
  const bool is_idle = questions_.empty() && departures_.empty() && !arrival_.has_value();
  if (!is_idle || !HasSaidGoodbye()) return moved ? PollResult::kMoved : PollResult::kIdle;
  for (Promise<void>& closer : closers_) closer.Set(absl::OkStatus());
  closers_.clear();
  return PollResult::kNothingToDo;
}

absl::StatusOr<bool> LinkActor::Advance() {
  ASSIGN_OR_RETURN(const bool took_message, TakeMessage());
  ASSIGN_OR_RETURN(const bool took_value, TakeValue());
  ASSIGN_OR_RETURN(const bool served, ServeNext());
  ASSIGN_OR_RETURN(const bool granted, GrantLocks());
  return took_message || took_value || served || granted;
}

absl::StatusOr<bool> LinkActor::TakeMessage() {
  ASSIGN_OR_RETURN(const std::optional<LinkMessage> message, inbox_.Take());
  if (!message.has_value()) return false;
  if (message->is_reply != 0) {
    RETURN_IF_ERROR(TakeReply(message->reply));
  } else {
    requests_.push_back(message->request);
  }
  return true;
}

absl::StatusOr<bool> LinkActor::ServeNext() {
  if (arrival_.has_value() || requests_.empty()) return false;
  const LinkRequest request = requests_.front();
  requests_.pop_front();
  RETURN_IF_ERROR(Serve(request));
  return true;
}

absl::Status LinkActor::TakeReply(const LinkReply& reply) {
  const auto found = questions_.find(reply.number);
  if (found == questions_.end()) return absl::InternalError("a reply to what was not asked");
  Question& question = found->second;
  question.is_answered = true;
  const absl::Status status = reply.ToStatus();
  const LinkRequest& request = question.asked.request;
  question.answer = status.ok() ? absl::StatusOr<bool>(request.call != LinkCall::kTryLock ||
                                                       reply.is_granted != 0)
                                : absl::StatusOr<bool>(status);
  if (!status.ok() || request.call != LinkCall::kGet || request.value_bytes == 0) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(question.transfers.emplace_back(),
                   ReceiveBytes(question.asked.target, request.value_bytes, kLinkReplyValueTag));
  return absl::OkStatus();
}

absl::StatusOr<bool> LinkActor::TakeValue() {
  if (!arrival_.has_value()) return false;
  if (!IsOver(*arrival_)) return false;
  if (arrival_->completion.has_value()) {
    RETURN_IF_ERROR(communicator_.Query(*arrival_->completion).status);
  }
  const Arrival arrival = *std::exchange(arrival_, std::nullopt);
  const absl::Status status = arrival.refusal.ok() ? Publish(arrival) : arrival.refusal;
  RETURN_IF_ERROR(Reply(LinkReply::To(arrival.request.number, status), arrival.request.window));
  return true;
}

bool LinkActor::IsOver(const Arrival& arrival) {
  return !arrival.completion.has_value() || communicator_.Query(*arrival.completion).done;
}

absl::Status LinkActor::Ask(uint64_t number) {
  Question& question = questions_[number];
  const LinkRequest& request = question.asked.request;
  question.message.request = request;
  RETURN_IF_ERROR(
      SendBytes(&question.message, sizeof question.message, kLinkMessageTag, question.transfers));
  if (!request.brings_value() || request.value_bytes == 0) return absl::OkStatus();
  return SendBytes(question.asked.value, request.value_bytes, kLinkRequestValueTag,
                   question.transfers);
}

absl::Status LinkActor::Serve(const LinkRequest& request) {
  if (request.brings_value()) return BeginArrival(request);
  if (request.call == LinkCall::kLeave) return absl::NotFoundError("the other rank has left");
  if (IsStopping(request.window) || served_.find(request.window) == served_.end()) {
    // What the other rank held of a window that stops has been given back.
    const bool is_given_back = IsStopping(request.window) && request.call == LinkCall::kUnlock;
    const absl::Status freed = is_given_back ? absl::OkStatus() : FreedError();
    return Reply(LinkReply::To(request.number, freed), request.window);
  }
  return request.call == LinkCall::kGet ? ServeGet(request) : ServeMutex(request);
}

absl::Status LinkActor::ServeGet(const LinkRequest& request) {
  const ServedWindow& window = served_[request.window];
  if (request.value_bytes != window.value_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a get of ", request.value_bytes, " bytes from a window of ", window.value_bytes()));
  }
  return Reply(LinkReply::To(request.number, absl::OkStatus()), request.window, &window);
}

absl::Status LinkActor::ServeMutex(const LinkRequest& request) {
  EdgeMutex& mutex = *served_[request.window].mutex;
  LinkReply reply = LinkReply::To(request.number, absl::OkStatus());
  switch (request.call) {
    case LinkCall::kUnlock:
      if (held_.erase(request.window) > 0) RETURN_IF_ERROR(mutex.Unlock());
      break;
    default:
      reply.is_granted = mutex.TryLock(peer_) ? 1 : 0;
      if (reply.is_granted != 0) held_.insert(request.window);
      if (reply.is_granted == 0 && request.call == LinkCall::kLock) {
        AwaitMutex(request);
        return absl::OkStatus();
      }
  }
  return Reply(reply, request.window);
}

void LinkActor::AwaitMutex(const LinkRequest& request) {
  const absl::Duration wait = absl::Nanoseconds(request.wait_ns);
  waits_for_mutex_.store(true);
  waiting_.push_back(
      {request, context().Now() + wait, context().SendAfter(*this, wait, LookAround{})});
}

absl::StatusOr<bool> LinkActor::GrantLocks() {
  bool moved = false;
  for (size_t i = 0; i < waiting_.size();) {
    const LinkRequest request = waiting_[i].request;
    EdgeMutex& mutex = *served_[request.window].mutex;
    const bool is_granted = mutex.TryLock(peer_);
    if (!is_granted && context().Now() < waiting_[i].until) {
      ++i;
      continue;
    }
    waiting_[i].timer.Cancel();
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    if (is_granted) held_.insert(request.window);
    const absl::Status status = is_granted ? absl::OkStatus() : mutex.NotInTime();
    RETURN_IF_ERROR(Reply(LinkReply::To(request.number, status), request.window));
    moved = true;
  }
  if (waiting_.empty()) waits_for_mutex_.store(false);
  return moved;
}

absl::Status LinkActor::BeginArrival(const LinkRequest& request) {
  Arrival arrival{request, absl::OkStatus(), std::nullopt, std::nullopt};
  const auto found = served_.find(request.window);
  // A window ends when all ranks have agreed to that, so no value is on its way then.
  if (found == served_.end() || !found->second.inlet.has_value() ||
      request.value_bytes != found->second.value_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("a value of ", request.value_bytes,
                                                   " bytes for no inlet of window number ",
                                                   request.window));
  }
  const EdgeView& inlet = *found->second.inlet;
  std::byte* target = nullptr;
  if (request.call == LinkCall::kPut) {
    arrival.draft = inlet.inlet->Begin();
    arrival.refusal = inlet.Provide(arrival.draft->buffer);
    if (arrival.refusal.ok()) target = inlet.buffer(arrival.draft->buffer);
  }
  if (target == nullptr) {
    staging_.resize(std::max(staging_.size(), static_cast<size_t>(request.value_bytes)));
    target = staging_.data();
  }
  if (request.value_bytes > 0) {
    ASSIGN_OR_RETURN(arrival.completion,
                     ReceiveBytes(target, request.value_bytes, kLinkRequestValueTag));
  }
  arrival_ = arrival;
  return absl::OkStatus();
}

absl::Status LinkActor::Publish(const Arrival& arrival) {
  const LinkRequest& request = arrival.request;
  const ServedWindow& window = served_[request.window];
  const std::optional<double> p =
      request.has_p != 0 ? std::optional<double>(request.p) : std::nullopt;
  if (arrival.draft.has_value()) {
    std::byte* const value = window.inlet->buffer(arrival.draft->buffer);
    const Term term{value, request.weight, window.dtype};
    if (request.weight != 1) WeightedSum({&term, 1}, value, window.count, window.dtype);
    window.inlet->inlet->Put(*arrival.draft, p);
    return absl::OkStatus();
  }
  EdgeWrite::What what;
  what.source = staging_.data();
  what.count = window.count;
  what.dtype = window.dtype;
  what.weight = request.weight;
  what.adds = true;
  what.p = p;
  EdgeWrite write(*window.inlet, what);
  absl::StatusOr<bool> is_done = false;
  while (is_done.ok() && !*is_done) is_done = write.Advance();
  return is_done.status();
}

absl::Status LinkActor::Reply(const LinkReply& reply, uint64_t window, const ServedWindow* value) {
  Departure& departure = departures_.emplace_back();
  departure.message.is_reply = 1;
  departure.message.reply = reply;
  departure.window = window;
  RETURN_IF_ERROR(SendBytes(&departure.message, sizeof departure.message, kLinkMessageTag,
                            departure.transfers));
  if (value == nullptr || value->value_bytes() == 0) return absl::OkStatus();
  return SendBytes(value->tensor, value->value_bytes(), kLinkReplyValueTag, departure.transfers);
}

absl::Status LinkActor::SendBytes(const void* bytes, uint64_t size, int32_t tag,
                                  std::vector<Completion>& transfers) {
  // Tensor has no constant memory; a send only reads it.
  ASSIGN_OR_RETURN(
      transfers.emplace_back(),
      Send(communicator_, {const_cast<void*>(bytes), size, DType::kUInt8}, other_, tag));
  return absl::OkStatus();
}

absl::StatusOr<Completion> LinkActor::ReceiveBytes(void* bytes, uint64_t size, int32_t tag) {
  return Recv(communicator_, {bytes, size, DType::kUInt8}, other_, tag);
}

bool LinkActor::AreDone(std::vector<Completion>& transfers) {
  std::erase_if(transfers, [this](Completion transfer) {
    const OperationRunner::State state = communicator_.Query(transfer);
    if (state.done && !state.status.ok() && !is_closed()) Break(state.status);
    return state.done;
  });
  return transfers.empty();
}

bool LinkActor::SettleQuestions() {
  bool moved = false;
  for (auto each = questions_.begin(); each != questions_.end();) {
    Question& question = each->second;
    const bool are_done = AreDone(question.transfers);
    if (!are_done || (!question.is_answered && !is_closed())) {
      ++each;
      continue;
    }
    const LinkRequest& request = question.asked.request;
    const bool is_whole = question.is_answered && !is_closed();
    absl::StatusOr<bool> answer = is_whole ? question.answer : absl::StatusOr<bool>(broken_);
    const bool has_mutex = answer.ok() && *answer &&
                           (request.call == LinkCall::kLock || request.call == LinkCall::kTryLock);
    const bool is_unwanted = question.reply.cancelled();
    const uint64_t window = request.window;
    question.reply.Set(std::move(answer));
    each = questions_.erase(each);
    moved = true;
    // The caller has given up meanwhile, so the mutex is given back.
    if (has_mutex && is_unwanted) {
      AskPeer unlock;
      unlock.question.request.call = LinkCall::kUnlock;
      unlock.question.request.window = window;
      unlock.reply = std::move(MakePromise<bool>().promise);
      Handle(std::move(unlock));
    }
  }
  return moved;
}

bool LinkActor::SettleDepartures() {
  const size_t before = departures_.size();
  departures_.remove_if([this](Departure& departure) { return AreDone(departure.transfers); });
  return departures_.size() != before;
}

bool LinkActor::SettleStops() {
  const size_t before = stops_.size();
  for (StopServing& stop : stops_) {
    if (IsInUse(stop.window)) continue;
    served_.erase(stop.window);
    stop.reply.Set(absl::OkStatus());
  }
  std::erase_if(stops_, [](const StopServing& stop) { return !stop.reply.valid(); });
  return stops_.size() != before;
}

// A window that waits for its last transfers grants nothing more: its mutex goes with it, and a
// reader who asked again and again would keep it for ever.
bool LinkActor::IsStopping(uint64_t window) const {
  return std::any_of(stops_.begin(), stops_.end(),
                     [window](const StopServing& stop) { return stop.window == window; });
}

bool LinkActor::IsInUse(uint64_t window) const {
  return (arrival_.has_value() && arrival_->request.window == window) ||
         std::any_of(departures_.begin(), departures_.end(),
                     [window](const Departure& departure) { return departure.window == window; });
}

void LinkActor::GiveBack(uint64_t window) {
  if (held_.erase(window) == 0) return;
  // Only this thread has it, so this cannot fail.
  (void)served_[window].mutex->Unlock();
}

void LinkActor::Break(const absl::Status& why) {
  const std::string who = absl::StrCat("rank ", peer_.value());
  broken_ = absl::IsNotFound(why)  // of FindSender, or of its last request
                ? absl::UnavailableError(absl::StrCat(who, " has left"))
                : Annotate(why, absl::StrCat(who, " cannot be reached"));
  GiveAllBack();
  if (!absl::IsNotFound(why) || HasTransfers()) communicator_.Abort(broken_);
}

void LinkActor::GiveAllBack() {
  while (!held_.empty()) GiveBack(*held_.begin());
  waiting_.clear();
  waits_for_mutex_.store(false);
}

}  // namespace pelton
