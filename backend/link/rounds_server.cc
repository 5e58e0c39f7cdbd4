#include "backend/link/rounds_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/page.h"
#include "backend/link/rounds_messages.h"
#include "core/actor/backoff.h"
#include "core/actor/wait_hook.h"
#include "core/base/limits.h"
#include "core/base/status.h"
#include "core/plan/round_mode.h"

namespace pelton {
namespace {

// A trainer asks one thing at a time.
constexpr size_t kMostQuestions = 4;

}  // namespace

RoundsServer::RoundsServer(ModelRounds& rounds, RoundsServerOptions options, LinkPage page)
    : rounds_(rounds),
      options_(std::move(options)),
      desk_(rounds, options_.model_name, options_.rank),
      page_(std::move(page)),
      waker_(&page_.header().daemon_sleeps),
      trainer_(&page_.header().trainer_sleeps),
      questions_(kMostQuestions) {}

absl::StatusOr<std::unique_ptr<RoundsServer>> RoundsServer::Start(ModelRounds& rounds,
                                                                  RoundsServerOptions options) {
  const size_t slot_count = rounds.plan().slots().size();
  ASSIGN_OR_RETURN(Descriptor memory, LinkPage::Create(slot_count, options.attachment));
  ASSIGN_OR_RETURN(LinkPage page, LinkPage::Map(memory.get(), slot_count));
  std::unique_ptr<RoundsServer> server(
      new RoundsServer(rounds, std::move(options), std::move(page)));
  RETURN_IF_ERROR(server->GoOn());
  RETURN_IF_ERROR(server->Greet(std::move(memory)));
  RoundsServer* const raw = server.get();
  raw->page_thread_ = SideThread([raw] { raw->Run(); });
  raw->socket_thread_ = SideThread([raw] { raw->ReceiveAll(); });
  return server;
}

RoundsServer::~RoundsServer() {
  End(absl::AbortedError(absl::StrCat("rank ", options_.rank.value(), "'s daemon lets model '",
                                      options_.model_name, "' go")));
  options_.socket->Shutdown();
  if (socket_thread_.joinable()) socket_thread_.Join();
  if (page_thread_.joinable()) page_thread_.Join();
}

absl::Status RoundsServer::Greet(Descriptor page) {
  page_.header().ended.store(round().value() - 1, std::memory_order_release);
  for (size_t i = 0; i < rounds_.plan().slots().size(); ++i) {  // of a round that a state has left
    PageSlot& slot = page_.slot(SlotId(static_cast<int32_t>(i)));
    slot.is_used_by_any.store(1, std::memory_order_relaxed);
  }
  link::RoundsAnswer answer;
  answer.set_rank(options_.rank_in_group.value());
  if (has_inherited_) desk_.AddPlan(answer);
  std::vector<Descriptor> memory;
  RETURN_IF_ERROR(desk_.AddMemory(answer, memory));
  std::vector<int> numbers = {page.get()};
  for (const Descriptor& descriptor : memory) numbers.push_back(descriptor.get());
  return options_.socket->Send(answer.SerializeAsString(), numbers,
                               WaitClock().Now() + limits::kStopTimeout);
}

void RoundsServer::ReceiveAll() {
  absl::Status status;
  while (status.ok() && !IsStopping()) status = Receive();
  if (status.ok()) return;
  // A script that restores a snapshot makes its model twice.
  const bool has_died = absl::IsUnavailable(status) && (!says_goodbye_ || is_untouched_.load());
  if (has_died && options_.keeps_progress &&
      (options_.own_end == nullptr || options_.own_end().ok())) {
    is_left_.store(true, std::memory_order_release);
    is_stopping_.store(true);
    is_over_.store(true, std::memory_order_release);
    is_over_.notify_all();
    return waker_.Kick();
  }
  const absl::Status own = options_.own_end != nullptr ? options_.own_end() : absl::OkStatus();
  if (!own.ok()) return End(own);
  End(Annotate(status, absl::StrCat("rank ", options_.rank.value(), "'s trainer of model '",
                                    options_.model_name, "' is gone")));
}

absl::Status RoundsServer::Receive() {
  ASSIGN_OR_RETURN(LinkSocket::Message received, options_.socket->Receive(absl::InfiniteFuture()));
  TrainersQuestion question;
  if (!question.message.ParseFromString(received.payload)) {
    return absl::InvalidArgumentError(
        "it has sent a message that is no question of the link; start the trainer and the daemon "
        "from one installation");
  }
  if (question.message.has_abort()) {
    const absl::Status reason = FromMessage(question.message.abort());
    if (!reason.ok()) rounds_.Abort(reason);
    return absl::OkStatus();
  }
  says_goodbye_ |= question.message.leaves();
  if (question.message.leaves()) return absl::OkStatus();
  if (question.message.has_region()) {
    const RegionId number(question.message.region().number());
    if (options_.regions == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("it registers region ", number.value(),
                       ", and no tensor of the model is standalone; start the trainer and the "
                       "daemon from one installation"));
    }
    RETURN_IF_ERROR(options_.regions->Enter(number, received.descriptors));
    waker_.Kick();
    return absl::OkStatus();
  }
  question.descriptors = std::move(received.descriptors);
  if (!questions_.Push(std::move(question))) {
    return absl::InvalidArgumentError(
        "it has asked more questions than it may before it takes the answers; start the trainer "
        "and the daemon from one installation");
  }
  waker_.Kick();
  return absl::OkStatus();
}

void RoundsServer::End(const absl::Status& reason) {
  is_over_.store(true, std::memory_order_release);
  is_over_.notify_all();
  // Either the page's thread sees this before it blocks, or this thread sees that it may.
  if (!is_stopping_.exchange(true) && is_busy_.load()) rounds_.Abort(reason);
  waker_.Kick();
}

// False: it is to stop instead. In the order that End needs.
bool RoundsServer::BeginsToBlock() {
  is_busy_.store(true);
  return !is_stopping_.load();
}

void RoundsServer::Run() {
  const RuntimeThread counted;
  Backoff backoff;
  LongLook long_look;
  while (!IsStopping()) {
    if (Look()) {
      backoff.Reset();
      long_look.Reset();
      continue;
    }
    if (!backoff.Spin() && !long_look.GoesOn()) waker_.Park(waits::kLongestSleepForWork);
  }
  page_end_.promise.Set(absl::OkStatus());
}

absl::StatusOr<RoundsProgress> RoundsServer::TakeProgress(absl::Time deadline) {
  if (!page_end_.future.WaitUntil(deadline)) {
    return absl::DeadlineExceededError(absl::StrCat(
        "model '", options_.model_name, "', rank ", options_.rank.value(), ", round ",
        rounds_.round().value(), ", which its former trainer waited for, has not ended in time"));
  }
  if (is_untouched_.load()) return std::move(progress_);
  if (desk_.is_agreeing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", options_.model_name, "', rank ", options_.rank.value(),
                     ": its former trainer was in the middle of an agreement with the other "
                     "ranks; start the trainers of all ranks anew"));
  }
  ASSIGN_OR_RETURN(const std::vector<BucketId> complete, rounds_.TakeBackMarks(deadline));
  KeepComplete(rounds_, complete, progress_);
  progress_.is_used = is_used_;
  is_busy_.store(false);
  return std::move(progress_);
}

bool RoundsServer::snapshot_is_behind() const {
  return options_.snapshots != nullptr &&
         static_cast<int64_t>(options_.snapshots->load()) <= snapshots_before_last_.load();
}

void RoundsServer::GiveUp(const absl::Status& reason) {
  if (is_busy_.load()) rounds_.Abort(reason);
}

absl::Status RoundsServer::GoOn() {
  OpenRound();
  if (!options_.progress.has_value()) return absl::OkStatus();
  progress_ = *std::exchange(options_.progress, std::nullopt);
  const uint64_t open = rounds_.round().value();
  const uint64_t wanted = options_.goes_on_with.value();
  const uint64_t last = progress_.last.round.value();
  repeats_ = wanted + 1 == open && wanted == last;
  if (wanted != open && !repeats_) {
    stray_ = absl::FailedPreconditionError(absl::StrCat(
        "model '", options_.model_name, "', rank ", options_.rank.value(),
        ": a trainer that comes in another one's place goes on with round ", wanted, "; round ",
        open, " is open, and of those before ",
        last == 0 ? "none is" : absl::StrCat("only round ", last, " is"),
        " kept; start the trainers of all ranks anew, so that they go back to a step that each of "
        "them holds"));
  }
  has_inherited_ = true;
  is_untouched_.store(true);
  is_taken_ = progress_.is_complete;
  for (const BucketLayout& bucket : rounds_.plan().buckets()) {
    const auto i = static_cast<size_t>(bucket.id.value());
    if (!is_taken_[i]) continue;
    has_marked_ = true;
    for (SlotId slot : bucket.slots) {
      const auto j = static_cast<size_t>(slot.value());
      is_marked_[j] = true;
      is_used_[j] = progress_.is_used[j];
    }
  }
  is_busy_.store(has_marked_);
  if (repeats_) PublishRuns(progress_.last.runs);
  return absl::OkStatus();
}

bool RoundsServer::Look() {
  const bool marked = TakeReady();
  const bool waited = TakeWait();
  return TakeQuestion() || marked || waited;
}

bool RoundsServer::TakeReady() {
  if (repeats_ || !stray_.ok()) return false;
  const uint64_t round = rounds_.round().value();
  bool moved = false;
  for (const BucketLayout& bucket : rounds_.plan().buckets()) {
    const auto i = static_cast<size_t>(bucket.id.value());
    if (is_taken_[i]) continue;
    // Acquires the marks and the elements.
    if (page_.bucket(bucket.id).ready.load(std::memory_order_acquire) != round) continue;
    if (!HasRegions(bucket)) continue;  // the socket's thread wakes this one
    is_untouched_.store(false);
    if (!BeginsToBlock()) return false;
    is_taken_[i] = true;
    moved = true;
    // The trainer gets the error at its next wait, as it gets every error of the round.
    if (absl::Status taken = TakeMarks(bucket, true); !taken.ok()) rounds_.Abort(taken);
  }
  return moved;
}

absl::Status RoundsServer::TakeMode() {
  const uint32_t mode = page_.header().mode.load(std::memory_order_relaxed);
  if (mode > static_cast<uint32_t>(RoundMode::kCollecting)) {
    return absl::InvalidArgumentError(absl::StrCat("page: round mode ", mode));
  }
  rounds_.SetMode(static_cast<RoundMode>(mode));
  has_marked_ = true;
  return absl::OkStatus();
}

absl::Status RoundsServer::TakeMarks(const BucketLayout& bucket, bool is_ready) {
  const uint64_t round = rounds_.round().value();
  for (SlotId slot : bucket.slots) {
    const auto i = static_cast<size_t>(slot.value());
    const uint64_t word = page_.slot(slot).mark.load(std::memory_order_relaxed);
    if (is_marked_[i] || (!is_ready && !HasRegion(slot))) continue;
    if (word / 2 != round) {
      if (!is_ready) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "page: ", rounds_.plan().Describe(bucket.id), " is ready in round ", round,
          ", its tensor '", rounds_.plan().tensor(slot).name, "' in round ", word / 2));
    }
    if (!has_marked_) RETURN_IF_ERROR(TakeMode());
    is_marked_[i] = true;
    is_used_[i] = word % 2 != 0;
    RETURN_IF_ERROR(TakeMark(slot, is_used_[i]));
  }
  return absl::OkStatus();
}

absl::Status RoundsServer::TakeMark(SlotId slot, bool is_used) {
  const SlotLayout& layout = rounds_.plan().slot(slot);
  if (!layout.standalone) {
    return is_used ? rounds_.MarkReady(slot) : rounds_.MarkUnused(slot, nullptr);
  }
  ASSIGN_OR_RETURN(std::byte* const data, PlaceNow(rounds_, page_, options_.regions, slot));
  return is_used ? rounds_.MarkReady(slot, data) : rounds_.MarkUnused(slot, data);
}

bool RoundsServer::HasRegion(SlotId slot) const {
  if (options_.regions == nullptr || !rounds_.plan().slot(slot).standalone) return true;
  const RegionId region(page_.slot(slot).region.load(std::memory_order_relaxed));
  return options_.regions->Find(region) != nullptr;
}

bool RoundsServer::HasRegions(const BucketLayout& bucket) const {
  return std::all_of(bucket.standalone.begin(), bucket.standalone.end(),
                     [this](SlotId slot) { return HasRegion(slot); });
}

bool RoundsServer::TakeWait() {
  const Round round = this->round();
  PageHeader& header = page_.header();
  // Acquires the marks of buckets that are not ready, which the trainer told before it waited.
  if (header.waited.load(std::memory_order_acquire) != round.value()) return false;
  for (const BucketLayout& bucket : rounds_.plan().buckets()) {
    const auto i = static_cast<size_t>(bucket.id.value());
    // Of one that was complete before this trainer came the results go to its memory.
    const bool is_inherited = has_inherited_ && (repeats_ || progress_.is_complete[i]);
    if (is_taken_[i] && !is_inherited) continue;
    const uint64_t ready = page_.bucket(bucket.id).ready.load(std::memory_order_acquire);
    if (ready == round.value() && !HasRegions(bucket)) return false;  // it comes, and may be taken
  }
  is_untouched_.store(false);
  if (!BeginsToBlock()) return false;
  if (!stray_.ok()) {
    page_.SetOutcome(stray_);
    is_busy_.store(has_marked_);
    header.ended.store(round.value(), std::memory_order_release);
    trainer_.Kick();
    PauseInSimulation();
    return true;
  }
  if (repeats_) {
    Publish(BringBack(progress_.last.results, rounds_, page_, options_.regions), round);
    return true;
  }
  for (const BucketLayout& bucket : rounds_.plan().buckets()) {
    if (is_taken_[static_cast<size_t>(bucket.id.value())]) continue;
    if (absl::Status taken = TakeMarks(bucket, false); !taken.ok()) rounds_.Abort(taken);
  }
  const absl::Duration timeout = DurationOf(header.timeout_ns.load(std::memory_order_relaxed));
  absl::Status status = rounds_.WaitRound(WaitClock().Now() + timeout);
  if (status.ok() && has_inherited_) {
    status = BringBack(progress_.results, rounds_, page_, options_.regions);
    if (!status.ok()) rounds_.Abort(status);
  }
  Publish(status, round);
  return true;
}

// Of a round that has ended, for which the trainer has computed once more what it gave then.
void RoundsServer::PublishRepeated() {
  for (size_t i = 0; i < progress_.last.is_used_by_any.size(); ++i) {
    page_.slot(SlotId(static_cast<int32_t>(i)))
        .is_used_by_any.store(progress_.last.is_used_by_any[i] ? 1 : 0, std::memory_order_relaxed);
  }
}

// What was written after memory was taken back from a peer has not reached the trainer, and the
// trainer itself must take it back, too.
absl::Status RoundsServer::LookForLoss(const absl::Status& status) {
  if (options_.regions == nullptr || !options_.regions->IsAnyUnshared()) return status;
  page_.header().takes_back.store(1, std::memory_order_relaxed);
  if (!status.ok()) return status;
  const absl::Status lost = absl::UnavailableError(absl::StrCat(
      "model '", options_.model_name, "', rank ", options_.rank.value(),
      ": memory of its tensors was taken back from a rank that had stopped while it wrote there"));
  rounds_.Abort(lost);
  return lost;
}

void RoundsServer::Publish(const absl::Status& outcome, Round ended) {
  PageHeader& header = page_.header();
  const absl::Status status = LookForLoss(outcome);
  page_.SetOutcome(status);
  if (status.ok() && repeats_) {
    PublishRepeated();
  } else if (status.ok()) {
    PublishResults();
    if (options_.keeps_progress) KeepLast(rounds_, ended, runs_, progress_);
  }
  if (options_.sent_bytes != nullptr) {
    header.sent_bytes.store(options_.sent_bytes(), std::memory_order_relaxed);
  }
  if (header.measures.load(std::memory_order_relaxed) == 0) {
    rounds_.times().End();
  } else if (!rounds_.times().on()) {
    rounds_.times().Begin(rounds_.plan().slots().size());
  }
  if (repeats_) {
    repeats_ = false;
    PublishRuns(runs_);
  } else {
    OpenRound();
  }
  is_busy_.store(has_marked_);
  // Releases all of the above, and the results. The wake-up is not lost: see LinkedRounds.
  header.ended.store(ended.value(), std::memory_order_release);
  trainer_.Kick();
  PauseInSimulation();
}

// What this rank has used somebody has used: the trainer knows that.
void RoundsServer::PublishResults() {
  const Plan& plan = rounds_.plan();
  for (size_t i = 0; i < is_used_.size(); ++i) {
    if (is_used_[i]) continue;
    const SlotId slot(static_cast<int32_t>(i));
    page_.slot(slot).is_used_by_any.store(rounds_.ResultOf(slot).used_by_any ? 1 : 0,
                                          std::memory_order_relaxed);
  }
  if (!rounds_.times().on()) return;
  for (const BucketLayout& bucket : plan.buckets()) {
    PageBucket& words = page_.bucket(bucket.id);
    words.ready_ns.store(rounds_.times().ready_ns(bucket.id), std::memory_order_relaxed);
    words.done_ns.store(rounds_.times().done_ns(bucket.id), std::memory_order_relaxed);
  }
}

// A snapshot counts before the round ends in which it is copied, so that one of the open round's,
// or of the one before, is what the results that are kept go on from.
void RoundsServer::NoteSnapshots() {
  if (options_.snapshots == nullptr || counted_ == rounds_.round()) return;
  if (counted_.value() != 0) {
    snapshots_before_last_.store(static_cast<int64_t>(snapshots_then_));
  }
  counted_ = rounds_.round();
  snapshots_then_ = options_.snapshots->load();
}

void RoundsServer::OpenRound() {
  const Plan& plan = rounds_.plan();
  NoteSnapshots();
  is_marked_.assign(plan.slots().size(), false);
  is_used_.assign(plan.slots().size(), false);
  is_taken_.assign(plan.buckets().size(), false);
  has_marked_ = has_inherited_ = false;
  progress_.is_complete.assign(plan.buckets().size(), false);
  progress_.results.clear();
  runs_.assign(plan.buckets().size(), false);
  for (const BucketLayout& bucket : plan.buckets()) {
    runs_[static_cast<size_t>(bucket.id.value())] = rounds_.Communicates(bucket.slots.front());
  }
  PublishRuns(runs_);
}

void RoundsServer::PublishRuns(const std::vector<bool>& runs) {
  for (const BucketLayout& bucket : rounds_.plan().buckets()) {
    const bool does = runs[static_cast<size_t>(bucket.id.value())];
    page_.bucket(bucket.id).runs.store(does ? 1 : 0, std::memory_order_relaxed);
  }
}

bool RoundsServer::TakeQuestion() {
  std::optional<TrainersQuestion> question = questions_.Take();
  if (!question.has_value() || !BeginsToBlock()) return false;
  link::RoundsAnswer answer;
  std::vector<Descriptor> descriptors;
  const absl::Status answered =
      desk_.Answer(*question, {has_marked_, has_inherited_}, answer, descriptors);
  const bool has_moved = question->message.has_replan() && !has_inherited_;
  if (answered.ok() && has_moved) OpenRound();
  *answer.mutable_status() = ToMessage(answered);
  std::vector<int> numbers;
  for (const Descriptor& descriptor : descriptors) numbers.push_back(descriptor.get());
  is_busy_.store(has_marked_);
  const absl::Status sent = options_.socket->Send(answer.SerializeAsString(), numbers,
                                                  WaitClock().Now() + limits::kStopTimeout);
  if (!sent.ok()) options_.socket->Shutdown();  // the socket's thread ends the rest
  return true;
}

}  // namespace pelton
