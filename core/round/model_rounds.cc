#include "core/round/model_rounds.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/actor/backoff.h"
#include "core/actor/borrow.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/actor/wait_hook.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"
#include "core/round/plan_instance.h"
#include "core/round/round_waiter.h"
#include "core/round/scheduler.h"
#include "core/round/slot_state.h"
#include "core/trace/trace.h"

namespace pelton {
namespace {

// A scheduler that has not answered by then, in spite of its own watch, is not going to.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);

absl::Status CheckOptions(const ModelRoundsOptions& options) {
  if (options.runner == nullptr) return absl::InvalidArgumentError("model rounds: no runner");
  if (options.pipeline_factory == nullptr) {
    return absl::InvalidArgumentError("model rounds: no pipeline factory");
  }
  if (options.operation_timeout > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model rounds: operation_timeout is ",
                                                 absl::FormatDuration(options.operation_timeout)));
}

// The rounds of a model whose scheduler is in this process.
// Threads: as ModelRounds. Owns: as ModelRounds.
class LocalRounds final : public ModelRounds {
 public:
  explicit LocalRounds(ModelRoundsOptions options)
      : options_(std::move(options)),
        sink_(*options_.runner, options_.device),
        waiter_(*options_.runner, options_.device != nullptr, options_.standstill),
        result_round_(options_.first_round.value() - 1) {}
  ~LocalRounds() override;

  absl::Status Start(Plan plan);

  const Plan& plan() const override { return instance_->plan; }
  Round round() const override { return instance_->tracker->round(); }
  void SetMode(RoundMode mode) override { tracker().set_mode(mode); }
  std::byte* DataOf(SlotId slot) const override { return instance_->storage->DataOf(slot); }
  absl::Status MarkReady(SlotId slot) override { return tracker().MarkReady(slot); }
  absl::Status MarkReady(SlotId slot, void* data) override {
    return tracker().MarkReady(slot, data);
  }
  absl::Status MarkUnused(SlotId slot, void* data) override {
    return tracker().MarkUnused(slot, data);
  }
  std::vector<SlotId> UnmarkedSlots() const override { return instance_->tracker->UnmarkedSlots(); }
  absl::Status EndRound() override;
  absl::Status WaitRound(absl::Time deadline) override;
  Future<void> RoundDone(absl::Time deadline) override;
  absl::Status CloseRound(absl::Status status) override;
  absl::StatusOr<std::vector<BucketId>> TakeBackMarks(absl::Time deadline) override;
  void Abort(const absl::Status& reason) override;
  bool Communicates(SlotId slot) const override;
  absl::Status Prime(absl::Time deadline) override;
  absl::StatusOr<std::vector<SlotState>> SaveStates(absl::Time deadline) override {
    RETURN_IF_ERROR(AwaitDevice(deadline));  // or the weights that go with it would be wrong
    return CopiesOf(SlotStatesOf(*instance_));
  }
  absl::Status LoadStates(absl::Span<const SlotState> states, absl::Time) override {
    CopySlotStates(states, SlotStatesOf(*instance_));
    return absl::OkStatus();
  }
  const Region* region() const override { return instance_->storage->region(); }
  SlotResult ResultOf(SlotId slot) const override;
  std::vector<SlotId> ReadyOrder() const override { return instance_->tracker->ReadyOrder(); }
  absl::Status BeginAgreement(std::vector<int32_t> words) override;
  absl::StatusOr<std::vector<int32_t>> Agreed(absl::Time deadline) override;
  absl::Status AwaitDevice(absl::Time deadline) override;
  Future<RoundSight> RequestLook(absl::Time deadline) override;
  BucketTimes& times() override { return times_; }
  absl::Status Replan(absl::Span<const SlotId> order, absl::Time deadline) override;
  absl::Status Resize(absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                      absl::Time deadline) override;

 private:
  bool is_agreeing() const override { return agreeing_.has_value(); }
  ReadyTracker& tracker() { return *instance_->tracker; }
  absl::StatusOr<std::unique_ptr<PlanInstance>> MakeInstance(Plan plan, Round first,
                                                             uint64_t capacity_bytes = 0);
  absl::Status MakeStorage(PlanInstance& instance, uint64_t capacity_bytes);
  absl::Status MoveTo(Plan plan, uint64_t capacity_bytes, absl::Time deadline);
  void Forget(const PlanInstance& instance);
  Executor& MakeExecutor();
  // Takes an answer of the scheduler's. Without one in time the rounds end, here and on the peers,
  // and `answer` is left, because it may come yet.
  absl::Status Await(Future<void>& answer, absl::Time deadline, Round round);
  absl::Status Await(Future<void> answer, absl::Time deadline) {
    return Await(answer, deadline, tracker().round());
  }
  absl::Status FetchWords(absl::Time deadline);
  std::string NamesOfShared();
  absl::Status BeginBroadcast(std::vector<int32_t> words);
  absl::StatusOr<std::vector<int32_t>> AwaitBroadcast(absl::Time deadline);
  absl::StatusOr<std::string> AgreeOnText(std::string text, size_t size_bytes, absl::Time deadline);
  absl::Status GatherShared(size_t names_bytes, absl::Time deadline);
  // The scheduler, whose thread, or whoever has borrowed it, may be parked on the runner.
  template <typename Question>
  auto Ask(Question question, absl::Time deadline) {
    auto answer = scheduler_.Ask(std::move(question), deadline);
    options_.runner->Wake();
    return answer;
  }
  Future<void> Run(const Operation& operation) {
    return Ask(RunOperation{operation, {}}, absl::InfiniteFuture());
  }

  ModelRoundsOptions options_;
  BucketTimes times_;
  std::unique_ptr<PlanInstance> instance_;
  // Those that the scheduler had not taken in time, with the abort behind.
  std::vector<std::unique_ptr<PlanInstance>> left_;
  SchedulerSink sink_;
  RoundWaiter waiter_;
  std::optional<ThreadExecutor> own_executor_;
  ActorRef<BucketScheduler> scheduler_;
  bool round_ended_ = false;
  // The last round that was waited for, by a model before this one where it goes on from a state.
  Round result_round_;
  // What is broadcast, here or on the device: it outlives a call that gave up.
  std::vector<int32_t> words_;
  std::byte* words_on_device_ = nullptr;
  std::optional<Future<void>> agreeing_;  // since BeginAgreement
  SharedState shared_;                    // for the next plan; outlives a call that gave up
};

LocalRounds::~LocalRounds() {
  sink_.Disarm();
  if (scheduler_.valid()) {
    const absl::Status quiet = AwaitDevice(WaitClock().Now() + limits::kStopTimeout);
    if (!quiet.ok()) options_.runner->Abort(quiet);
    options_.runner->Wake();
    // An error says that the scheduler had failed before, with which its waiters were answered, or
    // that it did not stop in time; its executor's end then ends it by force.
    StopAndWait(scheduler_, WaitClock().Now() + limits::kStopTimeout).IgnoreError();
  }
  own_executor_.reset();
  if (instance_ != nullptr) Forget(*instance_);
}

Executor& LocalRounds::MakeExecutor() {
  if (options_.executor != nullptr) return *options_.executor;
  ThreadExecutor::Options thread;
  thread.name = "pelton-channel";
  thread.park = [this](Waker& waker, absl::Duration at_most) {
    // A kick that came before is not lost. What parks on the runner must hold the scheduler's turn:
    // a waiter may be about to drive the runner itself.
    if (waker.Park(absl::ZeroDuration())) return;
    const std::optional<Borrowed<BucketScheduler>> turn = TryBorrow(scheduler_);
    if (turn.has_value())
      options_.runner->Park(WaitClock().Now() + std::min(at_most, waits::kLongestParkWithTurn));
  };
  return own_executor_.emplace(std::move(thread));
}

absl::Status LocalRounds::Start(Plan plan) {
  RETURN_IF_ERROR(CheckOptions(options_));
  ASSIGN_OR_RETURN(instance_, MakeInstance(std::move(plan), options_.first_round));
  SchedulerOptions scheduler;
  scheduler.model_name = options_.model_name;
  scheduler.rank = options_.rank;
  scheduler.runner = options_.runner;
  scheduler.operation_timeout = options_.operation_timeout;
  scheduler.on_failure = std::move(options_.on_failure);
  scheduler.waiter_drives = waiter_.drives();
  scheduler.commits_state = options_.commits_state;
  scheduler.times = &times_;
  scheduler.viewer = options_.viewer;
  scheduler.standstill = options_.standstill;
  // Not restarted: with it goes what the peers and the device still do with its buckets.
  SpawnOptions spawn;
  spawn.name = absl::StrCat("scheduler of '", options_.model_name, "'");
  spawn.executor = &MakeExecutor();
  spawn.ends_with_parent = false;
  // A message per bucket, besides the few of the waiter; both versions may have room reserved.
  spawn.mailbox_capacity = std::max(limits::kMailboxCapacity, instance_->plan.slots().size() * 2);
  scheduler_ = SpawnUnder<BucketScheduler>(options_.parent, std::move(spawn), std::move(scheduler),
                                           PlanInstanceLoan(instance_.get()));
  sink_.set_scheduler(scheduler_);
  waiter_.set_scheduler(scheduler_);
  sink_.Arm(instance_->plan);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PlanInstance>> LocalRounds::MakeInstance(Plan plan, Round first,
                                                                        uint64_t capacity_bytes) {
  auto instance = std::make_unique<PlanInstance>(std::move(plan));
  for (const BucketLayout& bucket : instance->plan.buckets()) {
    absl::StatusOr<Pipeline> pipeline = options_.pipeline_factory(bucket);
    if (!pipeline.ok()) return Annotate(pipeline.status(), instance->plan.Describe(bucket.id));
    instance->pipelines.push_back(*std::move(pipeline));
  }
  RETURN_IF_ERROR(RoundUsage::AddWhereWanted(*instance, options_.device));
  RETURN_IF_ERROR(MakeStorage(*instance, capacity_bytes));
  instance->tracker =
      std::make_unique<ReadyTracker>(instance->plan, *instance->storage, sink_, first);
  return instance;
}

// The memory of the plan in force where that is large enough, once nothing can fail any more.
absl::Status LocalRounds::MakeStorage(PlanInstance& instance, uint64_t capacity_bytes) {
  if (instance_ != nullptr && instance_->storage->Fits(instance.plan)) {
    instance.storage = BucketStorage::CreateToFollow(instance.plan);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(instance.storage, BucketStorage::Create(instance.plan, options_.model_name,
                                                           options_.device, capacity_bytes));
  const Region* const region = instance.storage->region();
  if (region == nullptr || options_.register_region == nullptr) return absl::OkStatus();
  return options_.register_region(*region);
}

void LocalRounds::Forget(const PlanInstance& instance) {
  const Region* const region = instance.storage->region();
  if (region != nullptr && options_.deregister_region != nullptr) {
    options_.deregister_region(region->id());
  }
}

absl::Status LocalRounds::EndRound() {
  if (std::exchange(round_ended_, true)) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", tracker().round().value(), " has ended already"));
  }
  const absl::Status ended = tracker().EndRound();
  if (!ended.ok()) Abort(ended);
  return ended;
}

Future<void> LocalRounds::RoundDone(absl::Time deadline) {
  // The scheduler itself enforces the deadline, with a better text than a future has.
  return Ask(AwaitRound{tracker().round(), deadline, {}}, deadline)
      .WithDeadline(absl::InfiniteFuture());
}

absl::Status LocalRounds::WaitRound(absl::Time deadline) {
  const TraceSpan span("wait round", -1, tracker().round().value());
  return CloseRound(Await(RoundDone(deadline), deadline + kAnswerGrace));
}

absl::Status LocalRounds::Await(Future<void>& answer, absl::Time deadline, Round round) {
  absl::Status interrupted;
  // A simulation that runs the scheduler itself does so wherever a thread of it waits.
  const bool is_run_by_waits = WaitHook::Current() != nullptr && !own_executor_.has_value();
  if (!is_run_by_waits) interrupted = waiter_.WaitFor(answer, &deadline);
  if (interrupted.ok() && answer.WaitUntil(deadline)) return std::move(answer).Take();
  const absl::Status late = absl::DeadlineExceededError(absl::StrCat(
      "the scheduler has not answered by ", absl::FormatTime(deadline),
      ", because a stage computes for that long in one turn, this process was stopped, or other "
      "ranks have not come and the operations' time-out, ",
      absl::FormatDuration(options_.operation_timeout), ", ends later; give the call more time"));
  const absl::Status reason = Annotate(interrupted.ok() ? late : interrupted,
                                       NameOfRound(options_.model_name, options_.rank, round));
  Abort(interrupted.ok() ? reason : AsAbort(reason));
  // What the peers may still write belongs to them until the rounds have ended (OWN-1).
  answer.WaitUntil(WaitClock().Now() + kAnswerGrace);
  return reason;
}

Future<RoundSight> LocalRounds::RequestLook(absl::Time deadline) {
  return Ask(LookAtRound{}, deadline);
}

absl::Status LocalRounds::CloseRound(absl::Status status) {
  result_round_ = tracker().round();
  if (!status.ok()) tracker().AbandonRound();
  if (status.ok() && options_.device != nullptr) status = options_.device->JoinPipelines();
  if (status.ok() && instance_->usage != nullptr) {
    status = instance_->usage->Fetch(tracker(), WaitClock().Now() + options_.operation_timeout);
    if (status.ok()) instance_->PutBackUnused(result_round_);
  }
  sink_.Arm(instance_->plan);
  tracker().OpenRound();
  if (options_.on_round != nullptr) options_.on_round(tracker().round());
  round_ended_ = false;
  return status;
}

SlotResult LocalRounds::ResultOf(SlotId slot) const {
  const SlotLayout& layout = instance_->plan.slot(slot);
  const Pipeline& pipeline = instance_->pipelines[static_cast<size_t>(layout.bucket.value())];
  SlotResult result{instance_->storage->DataOf(slot), layout.size_bytes, true};
  if (instance_->tracker->UsedHere(slot)) return result;
  if (!pipeline.RunsIn(result_round_)) {
    result.used_by_any = false;
  } else if (pipeline.finds_unused()) {
    result.used_by_any = instance_->usage->UsedElsewhere(slot);
  }
  return result;
}

// Stages keep nothing on a device.
std::string LocalRounds::NamesOfShared() {
  return options_.device == nullptr ? SharedState::NamesOf(SlotStatesOf(*instance_)) : "";
}

// And on how many bytes rank 0 names by what is to be gathered, as another plan may follow. It
// leads a host and serves the first part of each bucket, so that it keeps some wherever any rank
// does.
absl::Status LocalRounds::BeginAgreement(std::vector<int32_t> words) {
  words.push_back(static_cast<int32_t>(NamesOfShared().size()));
  return BeginBroadcast(std::move(words));
}

absl::Status LocalRounds::BeginBroadcast(std::vector<int32_t> words) {
  words_ = std::move(words);
  const size_t size_bytes = words_.size() * sizeof(int32_t);
  void* data = words_.data();
  if (options_.device != nullptr) {
    ASSIGN_OR_RETURN(words_on_device_, options_.device->Allocate(size_bytes));
    RETURN_IF_ERROR(options_.device->Write(words_on_device_, words_.data(), size_bytes,
                                           WaitClock().Now() + options_.operation_timeout));
    data = words_on_device_;
  }
  Operation broadcast;
  broadcast.kind = OperationKind::kBroadcast;
  broadcast.dtype = DType::kInt32;
  broadcast.count = words_.size();
  broadcast.peer = 0;
  broadcast.set_target(Locate(data, size_bytes));
  agreeing_ = Run(broadcast);
  return absl::OkStatus();
}

absl::StatusOr<std::string> LocalRounds::AgreeOnText(std::string text, size_t size_bytes,
                                                     absl::Time deadline) {
  text.resize(size_bytes);
  RETURN_IF_ERROR(BeginBroadcast({text.begin(), text.end()}));
  ASSIGN_OR_RETURN(const std::vector<int32_t> words, AwaitBroadcast(deadline));
  return std::string(words.begin(), words.end());
}

// Brings here what one rank keeps the only ones of, so that it goes on with the ranks whose part it
// is in the plan that follows.
absl::Status LocalRounds::GatherShared(size_t names_bytes, absl::Time deadline) {
  ASSIGN_OR_RETURN(const std::string names, AgreeOnText(NamesOfShared(), names_bytes, deadline));
  shared_ = SharedState(instance_->plan, names, SlotStatesOf(*instance_));
  for (const Operation& sum : shared_.Sums()) {
    RETURN_IF_ERROR(Await(Run(sum), deadline));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> LocalRounds::Agreed(absl::Time deadline) {
  if (!is_agreeing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", options_.model_name, "': no agreement was begun"));
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> words, AwaitBroadcast(deadline));
  const auto names_bytes = static_cast<size_t>(words.back());
  words.pop_back();
  if (names_bytes > 0) RETURN_IF_ERROR(GatherShared(names_bytes, deadline));
  return words;
}

absl::StatusOr<std::vector<int32_t>> LocalRounds::AwaitBroadcast(absl::Time deadline) {
  RETURN_IF_ERROR(Await(*std::exchange(agreeing_, std::nullopt), deadline));
  RETURN_IF_ERROR(FetchWords(deadline));
  return words_;
}

// After a failure the device may still be at the memory: then the queue's end releases it.
absl::Status LocalRounds::FetchWords(absl::Time deadline) {
  if (options_.device == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(options_.device->Read(words_.data(), words_on_device_,
                                        words_.size() * sizeof(int32_t), deadline));
  options_.device->Release(words_on_device_);
  return absl::OkStatus();
}

absl::Status LocalRounds::AwaitDevice(absl::Time deadline) {
  if (options_.device == nullptr) return absl::OkStatus();
  // The scheduler ends what is overdue there, with a better text.
  Future<void> quiet = Ask(pelton::AwaitDevice{}, absl::InfiniteFuture());
  return Await(quiet, deadline + kAnswerGrace, result_round_);
}

absl::Status LocalRounds::Replan(absl::Span<const SlotId> order, absl::Time deadline) {
  RETURN_IF_ERROR(AwaitDevice(deadline));
  ASSIGN_OR_RETURN(Plan plan, instance_->plan.Reordered(order));
  return MoveTo(std::move(plan), 0, deadline);
}

// Memory that has to be made is made large enough for every size: with a bucket for each tensor
// there is the most of what lies between them.
absl::Status LocalRounds::Resize(absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                                 absl::Time deadline) {
  RETURN_IF_ERROR(AwaitDevice(deadline));
  ASSIGN_OR_RETURN(Plan plan, instance_->plan.Resized(order, bucket_size_bytes));
  ASSIGN_OR_RETURN(const Plan largest, instance_->plan.Resized(order, 1));
  return MoveTo(std::move(plan), largest.flat_bytes(), deadline);
}

absl::Status LocalRounds::MoveTo(Plan plan, uint64_t capacity_bytes, absl::Time deadline) {
  ASSIGN_OR_RETURN(std::unique_ptr<PlanInstance> next,
                   MakeInstance(std::move(plan), tracker().round(), capacity_bytes));
  InstallPlan request{PlanInstanceLoan(next.get()), {}};
  Future<void> installed = Ask(std::move(request), absl::InfiniteFuture());
  // An agreement before this may have used the time up, and the answer takes one turn.
  const absl::Time latest = std::max(deadline, WaitClock().Now() + kAnswerGrace);
  const absl::Status status = Await(installed, latest, round());
  if (!status.ok()) Forget(*next);
  if (installed.valid()) left_.push_back(std::move(next));  // the scheduler may take it yet
  RETURN_IF_ERROR(status);
  instance_.swap(next);  // the scheduler has given the old one back
  if (instance_->storage->region() == nullptr) {
    instance_->storage->TakeMemoryOf(*next->storage);
  }
  const std::vector<SlotStateView> states = SlotStatesOf(*instance_);
  CopySlotStates(SlotStatesOf(*next), states);
  std::exchange(shared_, SharedState()).CopyTo(states);
  Forget(*next);
  sink_.Arm(instance_->plan);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<BucketId>> LocalRounds::TakeBackMarks(absl::Time deadline) {
  ASSIGN_OR_RETURN(std::vector<BucketId> complete,
                   waiter_.TakeBackMarks(tracker().round(), deadline));
  tracker().TakeBackAllBut(complete);
  sink_.Arm(instance_->plan);
  return complete;
}

void LocalRounds::Abort(const absl::Status& reason) {
  options_.runner->Abort(reason);
  scheduler_.Send(AbortRounds{reason}).IgnoreError();  // dead: everyone has heard
  options_.runner->Wake();
}

bool LocalRounds::Communicates(SlotId slot) const {
  const auto bucket = static_cast<size_t>(instance_->plan.slot(slot).bucket.value());
  return instance_->pipelines[bucket].RunsIn(instance_->tracker->round());
}

absl::Status LocalRounds::Prime(absl::Time) {
  for (const BucketLayout& bucket : instance_->plan.buckets()) {
    instance_->pipelines[static_cast<size_t>(bucket.id.value())].Prime(
        bucket, instance_->storage->FlatOf(bucket.id));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ModelRounds::BeginOrder() {
  std::vector<int32_t> order;
  for (SlotId slot : ReadyOrder()) order.push_back(slot.value());
  return BeginAgreement(std::move(order));
}

absl::StatusOr<std::vector<SlotId>> ModelRounds::AgreeOnOrder(absl::Time deadline) {
  if (!is_agreeing()) RETURN_IF_ERROR(BeginOrder());
  ASSIGN_OR_RETURN(const std::vector<int32_t> words, Agreed(deadline));
  std::vector<SlotId> order;
  for (int32_t slot : words) order.emplace_back(slot);
  return order;
}

absl::StatusOr<std::unique_ptr<ModelRounds>> ModelRounds::Create(Plan plan,
                                                                 ModelRoundsOptions options) {
  auto rounds = std::make_unique<LocalRounds>(std::move(options));
  RETURN_IF_ERROR(rounds->Start(std::move(plan)));
  return rounds;
}

}  // namespace pelton
