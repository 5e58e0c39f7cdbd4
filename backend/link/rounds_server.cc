#include "backend/link/rounds_server.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/rounds_messages.h"
#include "core/actor/backoff.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/status.h"
#include "core/bucket/round_mode.h"
#include "core/memory/dtype.h"

namespace pelton {
namespace {

// Bounds how late the page's thread sees what wakes it by mistake only.
constexpr absl::Duration kLongestPark = absl::Milliseconds(100);
// A trainer asks one thing at a time.
constexpr size_t kMostQuestions = 4;

RegionId IdOf(const Region* region) { return region == nullptr ? kPrivateRegion : region->id(); }

}  // namespace

RoundsServer::RoundsServer(ModelRounds& rounds, RoundsServerOptions options, LinkPage page)
    : rounds_(rounds),
      options_(std::move(options)),
      page_(std::move(page)),
      waker_(&page_.header().daemon_sleeps),
      trainer_(&page_.header().trainer_sleeps) {}

absl::StatusOr<std::unique_ptr<RoundsServer>> RoundsServer::Start(ModelRounds& rounds,
                                                                  RoundsServerOptions options) {
  const size_t slot_count = rounds.plan().slots().size();
  ASSIGN_OR_RETURN(Descriptor memory, LinkPage::Create(slot_count, options.attachment));
  ASSIGN_OR_RETURN(LinkPage page, LinkPage::Map(memory.get(), slot_count));
  std::unique_ptr<RoundsServer> server(
      new RoundsServer(rounds, std::move(options), std::move(page)));
  RETURN_IF_ERROR(server->Greet(std::move(memory)));
  server->page_thread_ = std::thread([raw = server.get()] { raw->Run(); });
  server->socket_thread_ = std::thread([raw = server.get()] { raw->ReceiveAll(); });
  return server;
}

RoundsServer::~RoundsServer() {
  End(absl::AbortedError(absl::StrCat("rank ", options_.rank.value(), "'s daemon lets model '",
                                      options_.model_name, "' go")));
  options_.socket->Shutdown();
  if (socket_thread_.joinable()) socket_thread_.join();
  if (page_thread_.joinable()) page_thread_.join();
}

absl::Status RoundsServer::Greet(Descriptor page) {
  page_.header().ended.store(rounds_.round().value() - 1, std::memory_order_release);
  for (size_t i = 0; i < rounds_.plan().slots().size(); ++i) {  // of a round that a state has left
    PageSlot& slot = page_.slot(SlotId(static_cast<int32_t>(i)));
    slot.is_used_by_any.store(1, std::memory_order_relaxed);
  }
  OpenRound();
  link::RoundsAnswer answer;
  answer.set_rank(options_.rank_in_group.value());
  std::vector<Descriptor> memory;
  RETURN_IF_ERROR(AddMemory(answer, memory));
  std::vector<int> numbers = {page.get()};
  for (const Descriptor& descriptor : memory) numbers.push_back(descriptor.get());
  return options_.socket->Send(answer.SerializeAsString(), numbers,
                               Clock::Real().Now() + limits::kStopTimeout);
}

// The plan in force and a descriptor of the memory of its flat parts, where it has any.
absl::Status RoundsServer::AddMemory(link::RoundsAnswer& answer,
                                     std::vector<Descriptor>& descriptors) const {
  answer.set_plan_hash(rounds_.plan().Hash());
  const Region* const region = rounds_.region();
  if (region == nullptr) return absl::OkStatus();
  Descriptor copy(dup(region->descriptor()));
  if (!copy.is_open()) {
    return absl::ResourceExhaustedError("no descriptor is left for the buckets' memory");
  }
  answer.set_has_memory(true);
  descriptors.push_back(std::move(copy));
  return absl::OkStatus();
}

void RoundsServer::ReceiveAll() {
  absl::Status status;
  while (status.ok() && !IsStopping()) status = Receive();
  if (status.ok()) return;
  const absl::Status own = options_.own_end != nullptr ? options_.own_end() : absl::OkStatus();
  if (!own.ok()) return End(own);
  End(Annotate(status, absl::StrCat("rank ", options_.rank.value(), "'s trainer of model '",
                                    options_.model_name, "' is gone")));
}

absl::Status RoundsServer::Receive() {
  ASSIGN_OR_RETURN(LinkSocket::Message received, options_.socket->Receive(absl::InfiniteFuture()));
  Question question;
  if (!question.message.ParseFromString(received.payload)) {
    return absl::InvalidArgumentError("it sends what is no question");
  }
  if (question.message.has_abort()) {
    const absl::Status reason = FromMessage(question.message.abort());
    if (!reason.ok()) rounds_.Abort(reason);
    return absl::OkStatus();
  }
  if (question.message.has_region()) {
    const RegionId number(question.message.region().number());
    if (options_.regions == nullptr) return absl::InvalidArgumentError("its plan needs no region");
    RETURN_IF_ERROR(options_.regions->Enter(number, received.descriptors));
    waker_.Kick();
    return absl::OkStatus();
  }
  question.descriptors = std::move(received.descriptors);
  {
    MutexLock lock(&mutex_);
    if (questions_.size() == kMostQuestions) {
      return absl::InvalidArgumentError("it does not wait for answers");
    }
    questions_.push_back(std::move(question));
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
  while (!IsStopping()) {
    if (Look()) {
      backoff.Reset();
      continue;
    }
    if (!backoff.Spin()) waker_.Park(kLongestPark);
  }
}

bool RoundsServer::Look() {
  const bool marked = TakeReady();
  const bool waited = TakeWait();
  return TakeQuestion() || marked || waited;
}

bool RoundsServer::TakeReady() {
  const uint64_t round = rounds_.round().value();
  bool moved = false;
  for (const BucketLayout& bucket : rounds_.plan().buckets()) {
    const auto i = static_cast<size_t>(bucket.id.value());
    if (is_taken_[i]) continue;
    // Acquires the marks and the elements.
    if (page_.bucket(bucket.id).ready.load(std::memory_order_acquire) != round) continue;
    if (!HasRegions(bucket)) continue;  // the socket's thread wakes this one
    if (!BeginsToBlock()) return false;
    is_taken_[i] = true;
    moved = true;
    // The trainer hears of it at its next wait, as of every error of the round.
    if (absl::Status taken = TakeMarks(bucket, true); !taken.ok()) rounds_.Abort(taken);
  }
  return moved;
}

absl::Status RoundsServer::TakeMode() {
  const uint32_t mode = page_.header().mode.load(std::memory_order_relaxed);
  if (mode > static_cast<uint32_t>(RoundMode::kEvaluation)) {
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
  const std::string& name = rounds_.plan().tensor(slot).name;
  const PageSlot& words = page_.slot(slot);
  const Location trainers{RegionId(words.region.load(std::memory_order_relaxed)),
                          words.offset.load(std::memory_order_relaxed)};
  if (options_.regions == nullptr || trainers.offset % SizeOf(rounds_.plan().tensor(slot).dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("page: tensor '", name, "' at ", trainers.offset, " of a region"));
  }
  ASSIGN_OR_RETURN(const TrainerRegions::Place place,
                   options_.regions->PlaceOf(trainers, layout.size_bytes, name));
  std::byte* const data = place.region->data() + place.location.offset;
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
  const Round round = rounds_.round();
  PageHeader& header = page_.header();
  // Acquires the marks of buckets that are not ready, which the trainer told before it waited.
  if (header.waited.load(std::memory_order_acquire) != round.value()) return false;
  for (const BucketLayout& bucket : rounds_.plan().buckets()) {
    if (is_taken_[static_cast<size_t>(bucket.id.value())]) continue;
    const uint64_t ready = page_.bucket(bucket.id).ready.load(std::memory_order_acquire);
    if (ready == round.value() && !HasRegions(bucket)) return false;  // it comes, and may be taken
  }
  if (!BeginsToBlock()) return false;
  for (const BucketLayout& bucket : rounds_.plan().buckets()) {
    if (is_taken_[static_cast<size_t>(bucket.id.value())]) continue;
    if (absl::Status taken = TakeMarks(bucket, false); !taken.ok()) rounds_.Abort(taken);
  }
  const absl::Duration timeout = DurationOf(header.timeout_ns.load(std::memory_order_relaxed));
  const absl::Status status = rounds_.WaitRound(Clock::Real().Now() + timeout);
  Publish(status, round);
  return true;
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
  if (status.ok()) PublishResults();
  if (options_.sent_bytes != nullptr) {
    header.sent_bytes.store(options_.sent_bytes(), std::memory_order_relaxed);
  }
  if (header.measures.load(std::memory_order_relaxed) == 0) {
    rounds_.times().End();
  } else if (!rounds_.times().on()) {
    rounds_.times().Begin(rounds_.plan().slots().size());
  }
  OpenRound();
  is_busy_.store(false);
  // Releases all of the above, and the results. The wake-up is not lost: see LinkedRounds.
  header.ended.store(ended.value(), std::memory_order_release);
  trainer_.Kick();
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

void RoundsServer::OpenRound() {
  const Plan& plan = rounds_.plan();
  is_marked_.assign(plan.slots().size(), false);
  is_used_.assign(plan.slots().size(), false);
  is_taken_.assign(plan.buckets().size(), false);
  has_marked_ = false;
  for (const BucketLayout& bucket : plan.buckets()) {
    const bool runs = rounds_.Communicates(bucket.slots.front());
    page_.bucket(bucket.id).runs.store(runs ? 1 : 0, std::memory_order_relaxed);
  }
}

bool RoundsServer::TakeQuestion() {
  Question question;
  {
    MutexLock lock(&mutex_);
    if (questions_.empty()) return false;
    question = std::move(questions_.front());
    questions_.pop_front();
  }
  if (!BeginsToBlock()) return false;
  link::RoundsAnswer answer;
  std::vector<Descriptor> descriptors;
  *answer.mutable_status() = ToMessage(Answer(question, answer, descriptors));
  std::vector<int> numbers;
  for (const Descriptor& descriptor : descriptors) numbers.push_back(descriptor.get());
  is_busy_.store(has_marked_);
  const absl::Status sent = options_.socket->Send(answer.SerializeAsString(), numbers,
                                                  Clock::Real().Now() + limits::kStopTimeout);
  if (!sent.ok()) options_.socket->Shutdown();  // the socket's thread ends the rest
  return true;
}

absl::Status RoundsServer::CheckBetweenRounds(const link::RoundsQuestion& question) const {
  // An agreement moves words of its own and leaves the state as it is.
  const bool only_looks = question.what_case() == link::RoundsQuestion::kSaveStates;
  const bool is_agreeing = is_agreeing_ && !only_looks;
  if (!has_marked_ && !is_agreeing) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "model '", options_.model_name,
      "': ", is_agreeing ? "an agreement" : absl::StrCat("round ", rounds_.round().value()),
      " is under way"));
}

absl::Status RoundsServer::Answer(const Question& question, link::RoundsAnswer& answer,
                                  std::vector<Descriptor>& descriptors) {
  const link::RoundsQuestion& message = question.message;
  const absl::Time deadline = Clock::Real().Now() + DurationOf(message.timeout_ns());
  if (message.what_case() == link::RoundsQuestion::kAgreed) return Agreed(deadline, answer);
  RETURN_IF_ERROR(CheckBetweenRounds(message));
  switch (message.what_case()) {
    case link::RoundsQuestion::kPrime:
      return rounds_.Prime(deadline);
    case link::RoundsQuestion::kSaveStates:
    case link::RoundsQuestion::kLoadStates:
      return AnswerOfStates(question, deadline, answer, descriptors);
    case link::RoundsQuestion::kBeginAgreement:
      return BeginAgreement(message.begin_agreement());
    case link::RoundsQuestion::kReplan:
      return Replan(message.replan(), deadline, answer, descriptors);
    default:
      return absl::InvalidArgumentError(absl::StrCat("model '", options_.model_name, "': question ",
                                                     message.what_case(),
                                                     " cannot be asked of a model that serves"));
  }
}

absl::Status RoundsServer::AnswerOfStates(const Question& question, absl::Time deadline,
                                          link::RoundsAnswer& answer,
                                          std::vector<Descriptor>& descriptors) {
  if (question.message.what_case() == link::RoundsQuestion::kSaveStates) {
    ASSIGN_OR_RETURN(const std::vector<SlotState> states, rounds_.SaveStates(deadline));
    ASSIGN_OR_RETURN(StatesInMemory in_memory, ToMemory(states));
    *answer.mutable_states() = std::move(in_memory.states);
    descriptors.push_back(std::move(in_memory.memory));
    return absl::OkStatus();
  }
  if (question.descriptors.empty()) {
    return absl::InvalidArgumentError("state: no memory comes with it");
  }
  ASSIGN_OR_RETURN(const std::vector<SlotState> states,
                   FromMemory(question.message.load_states(), question.descriptors.front().get(),
                              rounds_.plan().slots().size()));
  return rounds_.LoadStates(states, deadline);
}

absl::Status RoundsServer::BeginAgreement(const link::LinkWords& words) {
  if (words.words().empty()) return absl::InvalidArgumentError("an agreement on no words");
  RETURN_IF_ERROR(rounds_.BeginAgreement({words.words().begin(), words.words().end()}));
  is_agreeing_ = true;
  return absl::OkStatus();
}

absl::Status RoundsServer::Agreed(absl::Time deadline, link::RoundsAnswer& answer) {
  is_agreeing_ = false;
  ASSIGN_OR_RETURN(const std::vector<int32_t> words, rounds_.Agreed(deadline));
  answer.mutable_words()->mutable_words()->Assign(words.begin(), words.end());
  return absl::OkStatus();
}

absl::Status RoundsServer::Replan(const link::LinkReplan& request, absl::Time deadline,
                                  link::RoundsAnswer& answer,
                                  std::vector<Descriptor>& descriptors) {
  std::vector<SlotId> order;
  for (int32_t slot : request.order()) order.emplace_back(slot);
  const RegionId before = IdOf(rounds_.region());
  const uint64_t size_bytes = request.bucket_size_bytes();
  RETURN_IF_ERROR(size_bytes == 0 ? rounds_.Replan(order, deadline)
                                  : rounds_.Resize(order, size_bytes, deadline));
  OpenRound();
  RETURN_IF_ERROR(AddMemory(answer, descriptors));
  if (IdOf(rounds_.region()) == before) {  // the trainer has it mapped
    answer.set_has_memory(false);
    descriptors.clear();
  }
  return absl::OkStatus();
}

}  // namespace pelton
