#include "backend/link/linked_rounds.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/rounds_messages.h"
#include "comm/transport/shm/socket.h"
#include "core/actor/backoff.h"
#include "core/actor/wait_hook.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"
#include "core/trace/trace.h"

namespace pelton {
namespace {

// A daemon that has not answered by then, in spite of its own deadline, is not going to.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);
// An abort is told in passing.
constexpr absl::Duration kAbortPatience = absl::Milliseconds(100);
// A daemon reads all the time; one that takes no message for so long is stuck.
constexpr absl::Duration kTellPatience = absl::Seconds(1);

// Touches every page now: a page fault in a backward pass costs more than the copy that meets it.
void FaultIn(const PrivateMapping& mapping) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, of Linux 5.14; without it: later
  madvise(mapping.data(), mapping.size_bytes(), kPopulateWrite);
}

}  // namespace

void PageSink::OnBucketReady(BucketId bucket, Round round) {
  for (SlotId slot : plan_->bucket(bucket).slots) WriteMark(slot, round);
  // Releases the marks, and the elements that the last mark has acquired from all the others.
  page_.bucket(bucket).ready.store(round.value(), std::memory_order_release);
  Kick();
}

void PageSink::WriteMark(SlotId slot, Round round) {
  PageSlot& words = page_.slot(slot);
  if (plan_->slot(slot).standalone) {
    const Location place = Locate(storage_->DataOf(slot), plan_->slot(slot).size_bytes);
    words.region.store(place.region.value(), std::memory_order_relaxed);
    words.offset.store(place.offset, std::memory_order_relaxed);
  }
  const uint64_t used = tracker_->UsedHere(slot) ? 1 : 0;
  words.mark.store(round.value() * 2 + used, std::memory_order_relaxed);
}

LinkedRounds::LinkedRounds(LinkPage page, std::unique_ptr<PrivateMapping> page_memory,
                           size_t slot_count, Attachment attachment)
    : page_(std::move(page)),
      page_memory_(std::move(page_memory)),
      socket_(std::move(attachment.socket)),
      model_name_(std::move(attachment.model_name)),
      rank_(attachment.rank),
      on_failure_(std::move(attachment.on_failure)),
      failure_(std::move(attachment.failure)),
      standstill_(attachment.standstill),
      sink_(page_),
      waker_(&page_.header().trainer_sleeps),
      places_(slot_count, [this](RegionId number, int descriptor) {
        return TellOfRegion(number, descriptor);
      }) {}

LinkedRounds::~LinkedRounds() {
  is_closing_.store(true, std::memory_order_release);
  waker_.Kick();
  (void)waiting_.AwaitIdle(absl::InfiniteFuture());  // its wait looks at is_closing_
  if (instance_ != nullptr && IsLent()) EndLoan();
  // Not as one that dies, in whose place another one may come.
  link::RoundsQuestion goodbye;
  goodbye.set_leaves(true);
  socket_->Send(goodbye, WaitClock().Now() + kAbortPatience).IgnoreError();
  socket_->Shutdown();
}

bool LinkedRounds::IsLent() const {
  const uint64_t open = round().value();
  if (HasEnded(open)) return false;
  const auto& buckets = plan().buckets();
  return std::any_of(buckets.begin(), buckets.end(), [&](const BucketLayout& bucket) {
    return !bucket.standalone.empty() &&
           page_.bucket(bucket.id).ready.load(std::memory_order_relaxed) == open;
  });
}

void LinkedRounds::EndLoan() {
  Abort(absl::AbortedError(absl::StrCat("rank ", rank_.value(), "'s trainer of model '",
                                        model_name_, "' is gone: it let the model go in a round")));
  const uint64_t number = round().value();
  PostWait(WaitClock().Now() + kAnswerGrace);
  AwaitAbortedEnd(number);
  TakeBackWhatIsLent();
}

void LinkedRounds::AwaitAbortedEnd(uint64_t round) {
  const absl::Time end = WaitClock().Now() + kAnswerGrace;
  while (!HasEnded(round) && CheckDaemon().ok() && WaitClock().Now() < end) {
    waker_.Park(kInterruptInterval);
  }
}

// Where the daemon has not ended the round, it or its peers may be in the middle of it.
void LinkedRounds::TakeBackWhatIsLent() {
  const bool takes_back = page_.header().takes_back.load(std::memory_order_relaxed) != 0;
  if (takes_back || !HasEnded(round().value())) places_.TakeBack();
}

absl::Status LinkedRounds::TellOfRegion(RegionId number, int descriptor) {
  link::RoundsQuestion question;
  question.mutable_region()->set_number(number.value());
  const absl::Time deadline = WaitClock().Now() + kTellPatience;
  const absl::Status sent = socket_->Send(question.SerializeAsString(), {&descriptor, 1}, deadline);
  if (sent.ok()) return sent;
  RETURN_IF_ERROR(CheckDaemon());
  return Annotate(sent, absl::StrCat(Where(), ": its daemon takes no memory"));
}

absl::StatusOr<std::unique_ptr<LinkedRounds>> LinkedRounds::Create(Plan plan,
                                                                   Attachment attachment) {
  ASSIGN_OR_RETURN(LinkPage page, LinkPage::Map(attachment.page.get(), plan.slots().size()));
  ASSIGN_OR_RETURN(std::unique_ptr<PrivateMapping> page_memory,
                   PrivateMapping::Of(std::move(attachment.page)));
  Descriptor memory = std::move(attachment.memory);
  const uint64_t hash = attachment.plan_hash;
  const Round first = attachment.first_round;
  std::unique_ptr<LinkedRounds> rounds(new LinkedRounds(
      std::move(page), std::move(page_memory), plan.slots().size(), std::move(attachment)));
  RETURN_IF_ERROR(rounds->CheckHash(plan, hash));
  RETURN_IF_ERROR(rounds->MakeInstance(std::move(plan), first, std::move(memory)));
  return rounds;
}

absl::Status LinkedRounds::CheckHash(const Plan& plan, uint64_t hash) const {
  if (plan.Hash() == hash) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Where(), ": the daemon has planned the buckets otherwise (hash ", hash,
                   ", here ", plan.Hash(), "); start both from one installation"));
}

absl::Status LinkedRounds::MakeInstance(Plan plan, Round first, Descriptor memory) {
  auto next = std::make_unique<Instance>(std::move(plan));
  ASSIGN_OR_RETURN(next->storage, MapStorage(next->plan, std::move(memory)));
  next->tracker = std::make_unique<ReadyTracker>(next->plan, *next->storage, sink_, first);
  sink_.Follow(&next->plan, next->storage.get(), next->tracker.get());
  instance_ = std::move(next);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BucketStorage>> LinkedRounds::MapStorage(const Plan& plan,
                                                                        Descriptor memory) {
  if (!memory.is_open() && instance_ != nullptr) {
    std::unique_ptr<BucketStorage> storage = BucketStorage::CreateToFollow(plan);
    storage->TakeMemoryOf(*instance_->storage);
    return storage;
  }
  std::unique_ptr<Region> region;
  if (memory.is_open()) {
    ASSIGN_OR_RETURN(std::unique_ptr<PrivateMapping> mapping,
                     PrivateMapping::Of(std::move(memory)));
    FaultIn(*mapping);
    region = Region::Adopt(mapping->data(), mapping->size_bytes(), model_name_);
    memory_ = std::move(mapping);
  }
  return BucketStorage::CreateOver(plan, std::move(region));
}

std::byte* LinkedRounds::DataOf(SlotId slot) const {
  std::byte* const original = places_.OriginalOf(slot);
  return original != nullptr ? original : instance_->storage->DataOf(slot);
}

absl::Status LinkedRounds::MarkReady(SlotId slot, void* data) {
  if (data != nullptr && IsStandalone(slot)) {
    ASSIGN_OR_RETURN(data, places_.Reach(slot, data, plan().slot(slot).size_bytes));
  }
  return tracker().MarkReady(slot, data);
}

absl::Status LinkedRounds::MarkUnused(SlotId slot, void* data) {
  if (data != nullptr && IsStandalone(slot)) {
    ASSIGN_OR_RETURN(data, places_.Reach(slot, data, plan().slot(slot).size_bytes));
  }
  return tracker().MarkUnused(slot, data);
}

void LinkedRounds::SetMode(RoundMode mode) {
  tracker().set_mode(mode);
  page_.header().mode.store(static_cast<uint32_t>(mode), std::memory_order_relaxed);
}

absl::Status LinkedRounds::EndRound() {
  if (std::exchange(round_ended_, true)) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", round().value(), " of model '", model_name_, "' has ended already"));
  }
  for (SlotId slot : UnmarkedSlots()) {
    if (!IsStandalone(slot)) continue;
    ASSIGN_OR_RETURN(std::byte* const zeros, places_.Zeros(slot, plan().slot(slot).size_bytes));
    RETURN_IF_ERROR(tracker().MarkUnused(slot, zeros));
  }
  return tracker().EndRound();
}

absl::Status LinkedRounds::WaitRound(absl::Time deadline) {
  const uint64_t number = round().value();
  const TraceSpan span("wait round", -1, number);
  PostWait(deadline);
  absl::Status status = AwaitEnd(number, deadline);
  if (IsInterrupted(status)) {
    status = Annotate(status, absl::StrCat(Where(), ", round ", number));
    Abort(AsAbort(status));
    AwaitAbortedEnd(number);
  }
  return CloseRound(std::move(status));
}

Future<void> LinkedRounds::RoundDone(absl::Time deadline) {
  PostWait(deadline);
  PromiseAndFuture<void> done = MakePromise<void>();
  waiting_.Add(
      [this, deadline, number = round().value(), promise = std::move(done.promise)]() mutable {
        promise.Set(AwaitEnd(number, deadline));
      });
  return std::move(done.future);
}

void LinkedRounds::PostWait(absl::Time deadline) {
  const Round open = round();
  for (const BucketLayout& bucket : plan().buckets()) {
    const std::vector<SlotId> unmarked = tracker().UnmarkedSlotsOf(bucket.id, open);
    if (unmarked.empty()) continue;
    // So that the daemon can tell which tensors are missing.
    for (SlotId slot : bucket.slots) {
      const bool is_marked = std::find(unmarked.begin(), unmarked.end(), slot) == unmarked.end();
      if (is_marked) sink_.WriteMark(slot, open);
    }
  }
  PageHeader& header = page_.header();
  header.measures.store(times_.on() ? 1 : 0, std::memory_order_relaxed);
  header.timeout_ns.store(NanosOf(deadline - WaitClock().Now()), std::memory_order_relaxed);
  // A wake-up is not lost: the daemon announces in its word that it sleeps and looks at `waited`
  // once more, while this side stores `waited` and then changes that word.
  header.waited.store(open.value(), std::memory_order_release);
  sink_.Kick();
}

bool LinkedRounds::HasEnded(uint64_t round) const {
  return page_.header().ended.load(std::memory_order_acquire) >= round;
}

absl::Duration LinkedRounds::Stood() const {
  return standstill_ == nullptr ? absl::ZeroDuration() : standstill_->Total(WaitClock().Now());
}

absl::Status LinkedRounds::AwaitEnd(uint64_t round, absl::Time deadline) {
  const absl::Time began = WaitClock().Now();
  const absl::Duration stood = Stood();
  Backoff backoff;
  LongLook long_look;
  while (!HasEnded(round)) {
    if (backoff.Pause() || long_look.GoesOn()) continue;
    RETURN_IF_ERROR(CheckInterrupt());
    const absl::Time now = WaitClock().Now();
    if (is_closing_.load(std::memory_order_acquire)) return absl::CancelledError("detached");
    const absl::Time last = deadline + kAnswerGrace + (Stood() - stood);
    if (now >= last) {
      return absl::DeadlineExceededError(
          absl::StrCat(Where(), ", round ", round, ": ", Silence(now - began)));
    }
    if (waker_.Park(std::min(kInterruptInterval, last - now))) continue;
    CheckJob();
    const absl::Status daemon = CheckDaemon();
    // What it stored before it died counts.
    if (!daemon.ok() && !HasEnded(round)) return daemon;
  }
  return page_.outcome();
}

void LinkedRounds::CheckJob() {
  if (failure_ == nullptr || has_aborted_) return;
  const absl::Status failure = failure_();
  if (failure.ok()) return;
  has_aborted_ = true;
  Abort(failure);
}

absl::Status LinkedRounds::CheckDaemon() {
  if (!gone_.is_given() && socket_->IsClosed()) {
    const absl::StatusOr<shm::Credentials> daemon = shm::PeerOf(socket_->descriptor());
    gone_.Give(absl::UnavailableError(absl::StrCat(
        Where(), ": its pelton-daemon (pid ", daemon.ok() ? absl::StrCat(daemon->pid) : "unknown",
        ") is gone; its log says why, and a new job starts a new one")));
  }
  return gone_.Get();
}

std::string LinkedRounds::Silence(absl::Duration waited) const {
  const absl::StatusOr<shm::Credentials> daemon = shm::PeerOf(socket_->descriptor());
  return absl::StrCat("the pelton-daemon of rank ", rank_.value(),
                      daemon.ok() ? absl::StrCat(" (pid ", daemon->pid, ")") : "",
                      " has not answered for ", absl::ToInt64Milliseconds(waited) / 100 * 0.1,
                      " s; look whether it is stopped or stuck, and end the job");
}

std::string LinkedRounds::Where() const {
  return absl::StrCat("model '", model_name_, "', rank ", rank_.value());
}

absl::Status LinkedRounds::CloseRound(absl::Status status) {
  if (status.ok()) {
    places_.BringBack();
    TakeTimes();
  } else {
    TakeBackWhatIsLent();
    tracker().AbandonRound();
  }
  // Ranks that merely disagree may go on.
  const bool is_end = !status.ok() && !absl::IsInvalidArgument(status);
  if (is_end && on_failure_ != nullptr) std::exchange(on_failure_, nullptr)(status);
  // Of a round that has not ended what is not marked would be missing in the next one.
  tracker().OpenRound();
  round_ended_ = false;
  return status;
}

void LinkedRounds::TakeTimes() {
  if (!times_.on()) return;
  for (const BucketLayout& bucket : plan().buckets()) {
    const PageBucket& words = page_.bucket(bucket.id);
    const int64_t ready_ns = words.ready_ns.load(std::memory_order_relaxed);
    const int64_t done_ns = words.done_ns.load(std::memory_order_relaxed);
    times_.Ready(bucket.id, absl::FromUnixNanos(ready_ns));
    times_.Done(bucket.id, absl::FromUnixNanos(done_ns));
  }
}

void LinkedRounds::Abort(const absl::Status& reason) {
  link::RoundsQuestion question;
  *question.mutable_abort() = ToMessage(reason);
  // Where the daemon is gone there is nothing to end.
  socket_->Send(question, WaitClock().Now() + kAbortPatience).IgnoreError();
}

bool LinkedRounds::Communicates(SlotId slot) const {
  return page_.bucket(plan().slot(slot).bucket).runs.load(std::memory_order_relaxed) != 0;
}

SlotResult LinkedRounds::ResultOf(SlotId slot) const {
  const bool used_by_any = instance_->tracker->UsedHere(slot) ||
                           page_.slot(slot).is_used_by_any.load(std::memory_order_relaxed) != 0;
  return {DataOf(slot), plan().slot(slot).size_bytes, used_by_any};
}

absl::StatusOr<LinkedRounds::Answer> LinkedRounds::Ask(link::RoundsQuestion question,
                                                       absl::Time deadline,
                                                       absl::Span<const int> descriptors) {
  RETURN_IF_ERROR(CheckDaemon());
  question.set_timeout_ns(NanosOf(deadline - WaitClock().Now()));
  absl::StatusOr<Answer> answer = Exchange(question, deadline, descriptors);
  if (!answer.ok()) {
    // The answer to this question would be taken for that to the next one.
    socket_->Shutdown();
    gone_.Give(Annotate(answer.status(), absl::StrCat(Where(), ": its daemon")));
    return gone_.Get();
  }
  RETURN_IF_ERROR(FromMessage(answer->message.status()));
  return answer;
}

absl::StatusOr<LinkedRounds::Answer> LinkedRounds::Exchange(const link::RoundsQuestion& question,
                                                            absl::Time deadline,
                                                            absl::Span<const int> descriptors) {
  RETURN_IF_ERROR(
      socket_->Send(question.SerializeAsString(), descriptors, deadline + kAnswerGrace));
  sink_.Kick();
  ASSIGN_OR_RETURN(LinkSocket::Message received,
                   socket_->ReceiveWithLooks(deadline + kAnswerGrace, [this] {
                     CheckJob();
                     return absl::OkStatus();
                   }));
  Answer answer;
  if (!answer.message.ParseFromString(received.payload)) {
    return absl::InternalError(
        "it sends an answer that this trainer cannot read; start the trainer and the daemon from "
        "one "
        "installation");
  }
  answer.descriptors = std::move(received.descriptors);
  return answer;
}

absl::Status LinkedRounds::Prime(absl::Time deadline) {
  link::RoundsQuestion question;
  question.set_prime(true);
  return Ask(std::move(question), deadline).status();
}

absl::StatusOr<std::vector<SlotState>> LinkedRounds::SaveStates(absl::Time deadline) {
  link::RoundsQuestion question;
  question.set_save_states(true);
  ASSIGN_OR_RETURN(const Answer answer, Ask(std::move(question), deadline));
  if (answer.descriptors.empty()) {
    return absl::InternalError(
        absl::StrCat(Where(), ": its daemon sends no memory with the state"));
  }
  return FromMemory(answer.message.states(), answer.descriptors.front().get(),
                    plan().slots().size());
}

absl::Status LinkedRounds::LoadStates(absl::Span<const SlotState> states, absl::Time deadline) {
  ASSIGN_OR_RETURN(StatesInMemory in_memory, ToMemory(states));
  link::RoundsQuestion question;
  *question.mutable_load_states() = std::move(in_memory.states);
  return Ask(std::move(question), deadline, {in_memory.memory.get()}).status();
}

absl::Status LinkedRounds::BeginAgreement(std::vector<int32_t> words) {
  link::RoundsQuestion question;
  question.mutable_begin_agreement()->mutable_words()->Assign(words.begin(), words.end());
  const absl::Time deadline = WaitClock().Now() + limits::kDefaultOperationTimeout;
  RETURN_IF_ERROR(Ask(std::move(question), deadline).status());
  is_agreeing_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> LinkedRounds::Agreed(absl::Time deadline) {
  if (!std::exchange(is_agreeing_, false)) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", model_name_, "': call BeginAgreement first"));
  }
  link::RoundsQuestion question;
  question.set_agreed(true);
  ASSIGN_OR_RETURN(const Answer answer, Ask(std::move(question), deadline));
  const auto& words = answer.message.words().words();
  return std::vector<int32_t>(words.begin(), words.end());
}

absl::Status LinkedRounds::Replan(absl::Span<const SlotId> order, absl::Time deadline) {
  ASSIGN_OR_RETURN(Plan next, plan().Reordered(order));
  return MoveTo(std::move(next), order, 0, deadline);
}

absl::Status LinkedRounds::Resize(absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                                  absl::Time deadline) {
  ASSIGN_OR_RETURN(Plan next, plan().Resized(order, bucket_size_bytes));
  return MoveTo(std::move(next), order, bucket_size_bytes, deadline);
}

absl::Status LinkedRounds::MoveTo(Plan plan, absl::Span<const SlotId> order,
                                  uint64_t bucket_size_bytes, absl::Time deadline) {
  link::RoundsQuestion question;
  for (SlotId slot : order) question.mutable_replan()->add_order(slot.value());
  question.mutable_replan()->set_bucket_size_bytes(bucket_size_bytes);
  ASSIGN_OR_RETURN(Answer answer, Ask(std::move(question), deadline));
  RETURN_IF_ERROR(CheckHash(plan, answer.message.plan_hash()));
  Descriptor memory;
  if (answer.message.has_memory()) {
    if (answer.descriptors.empty()) {
      return absl::InternalError(
          absl::StrCat(Where(), ": its daemon sends no memory for the buckets"));
    }
    memory = std::move(answer.descriptors.back());
  }
  return MakeInstance(std::move(plan), round(), std::move(memory));
}

}  // namespace pelton
