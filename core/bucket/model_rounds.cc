#include "core/bucket/model_rounds.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/actor/borrow.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/actor/wait_hook.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"
#include "core/bucket/plan_instance.h"
#include "core/bucket/round_waiter.h"
#include "core/bucket/scheduler.h"
#include "core/bucket/slot_state.h"
#include "core/trace/trace.h"

namespace pelton {
namespace {

// Bounds how late the scheduler's thread sees what wakes neither it nor the runner.
constexpr absl::Duration kLongestPark = absl::Milliseconds(1);
// A scheduler that has not answered by then, in spite of its own watch, is not going to.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);

// Sends each bucket's message with room that was reserved when the round began, so that a mark
// cannot fail. Threads: as ReadySink; Arm by one thread, between rounds. Owns: the room.
class SchedulerSink final : public ReadySink {
 public:
  SchedulerSink(OperationRunner& runner, DeviceQueue* device) : runner_(runner), device_(device) {}

  void set_scheduler(ActorRef<BucketScheduler> scheduler) { scheduler_ = std::move(scheduler); }
  // Reserves room for a round of `plan`. A dead scheduler has none: whoever waits hears of it.
  void Arm(const Plan& plan) {
    version_ = plan.version();
    room_.resize(plan.buckets().size());
    for (std::optional<Permits<BucketScheduler>>& room : room_) {
      if (room.has_value() && room->remaining() > 0) continue;
      absl::StatusOr<Permits<BucketScheduler>> reserved = scheduler_.Reserve();
      if (reserved.ok()) room.emplace(*std::move(reserved));
    }
  }

  // Gives all room back: a scheduler that stops waits for what may still come.
  void Disarm() { room_.clear(); }

  void OnBucketReady(BucketId bucket, Round round) override {
    std::optional<Permits<BucketScheduler>>& room = room_[static_cast<size_t>(bucket.value())];
    if (!room.has_value()) return;
    if (device_ != nullptr) {
      // The bucket's operations then fail with the reason.
      if (absl::Status marked = device_->MarkReady(bucket); !marked.ok()) runner_.Abort(marked);
    }
    // Fails only when the scheduler is dead, which whoever waits hears of.
    room->Send(BucketReady{bucket, round, version_}).IgnoreError();
    runner_.Wake();  // the scheduler's thread may be parked on the runner
  }

 private:
  OperationRunner& runner_;
  DeviceQueue* const device_;
  ActorRef<BucketScheduler> scheduler_;
  PlanVersion version_;
  std::vector<std::optional<Permits<BucketScheduler>>> room_;  // by bucket
};

bool AnyNonZero(const std::byte* bytes, size_t count) {
  return std::any_of(bytes, bytes + count, [](std::byte byte) { return byte != std::byte{0}; });
}

absl::Status CheckOptions(const ModelRoundsOptions& options) {
  if (options.runner == nullptr) return absl::InvalidArgumentError("model rounds: no runner");
  if (options.pipeline_factory == nullptr) {
    return absl::InvalidArgumentError("model rounds: no pipeline factory");
  }
  if (options.operation_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model rounds: operation_timeout is ", absl::FormatDuration(options.operation_timeout)));
  }
  return absl::OkStatus();
}

}  // namespace

// Threads: as ModelRounds. Owns: as ModelRounds.
class ModelRounds::Impl {
 public:
  explicit Impl(ModelRoundsOptions options)
      : options_(std::move(options)),
        sink_(*options_.runner, options_.device),
        waiter_(*options_.runner, options_.device != nullptr) {}
  ~Impl();

  absl::Status Start(Plan plan);
  const PlanInstance& instance() const { return *instance_; }
  PlanInstance& instance() { return *instance_; }
  ReadyTracker& tracker() { return *instance_->tracker; }
  absl::Status EndRound();
  absl::Status WaitRound(absl::Time deadline);
  SlotResult ResultOf(SlotId slot) const;
  absl::Status BeginOrder();
  absl::StatusOr<std::vector<SlotId>> AgreeOnOrder(absl::Time deadline);
  absl::Status BeginAgreement(std::vector<int32_t> words);
  absl::StatusOr<std::vector<int32_t>> Agreed(absl::Time deadline);
  BucketTimes& times() { return times_; }
  absl::Status Replan(absl::Span<const SlotId> order, absl::Time deadline);
  absl::Status Resize(absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                      absl::Time deadline);
  void Abort(const absl::Status& reason);
  Future<void> RoundDone(absl::Time deadline);
  absl::Status CloseRound(absl::Status status);

 private:
  absl::StatusOr<std::unique_ptr<PlanInstance>> MakeInstance(Plan plan, Round first,
                                                             uint64_t capacity_bytes = 0);
  absl::Status MakeStorage(PlanInstance& instance, uint64_t capacity_bytes);
  absl::Status MoveTo(Plan plan, uint64_t capacity_bytes, absl::Time deadline);
  void Forget(const PlanInstance& instance);
  Executor& MakeExecutor();
  absl::Status Await(Future<void> future, absl::Time deadline);
  // Until no device is at operations of earlier rounds.
  absl::Status AwaitDevice(absl::Time deadline);
  absl::Status FetchWords(absl::Time deadline);
  // Brings the used tails to the host that tell of slots which this rank did not use.
  absl::Status ReadTails();
  bool AnyUnusedHere(const BucketLayout& bucket) const;

  ModelRoundsOptions options_;
  BucketTimes times_;
  std::unique_ptr<PlanInstance> instance_;
  SchedulerSink sink_;
  RoundWaiter waiter_;
  std::optional<ThreadExecutor> own_executor_;
  ActorRef<BucketScheduler> scheduler_;
  bool round_ended_ = false;
  // Of the last round that was waited for.
  Round result_round_{0};
  // What is broadcast, here or on the device: it outlives a call that gave up.
  std::vector<int32_t> words_;
  std::byte* words_on_device_ = nullptr;
  std::optional<Future<void>> agreeing_;       // since BeginAgreement
  std::vector<std::vector<std::byte>> tails_;  // of a device's buckets, as ReadTails left them
};

ModelRounds::Impl::~Impl() {
  sink_.Disarm();
  if (scheduler_.valid()) {
    const absl::Status quiet = AwaitDevice(WaitClock().Now() + limits::kStopTimeout);
    if (!quiet.ok()) options_.runner->Abort(quiet);
    options_.runner->Wake();
    // An error would be that it ended in some other way, which its waiters have heard of.
    StopAndWait(scheduler_, WaitClock().Now() + limits::kStopTimeout).IgnoreError();
  }
  own_executor_.reset();
  if (instance_ != nullptr) Forget(*instance_);
}

Executor& ModelRounds::Impl::MakeExecutor() {
  if (options_.executor != nullptr) return *options_.executor;
  ThreadExecutor::Options thread;
  thread.name = "pelton-channel";
  thread.park = [this](Waker& waker, absl::Duration at_most) {
    // A kick that came before is not lost. What parks on the runner must hold the scheduler's turn:
    // a waiter may be about to drive the runner itself.
    if (waker.Park(absl::ZeroDuration())) return;
    const std::optional<Borrowed<BucketScheduler>> turn = TryBorrow(scheduler_);
    if (turn.has_value())
      options_.runner->Park(Clock::Real().Now() + std::min(at_most, kLongestPark));
  };
  return own_executor_.emplace(std::move(thread));
}

absl::Status ModelRounds::Impl::Start(Plan plan) {
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
  SpawnOptions spawn;
  spawn.name = absl::StrCat("scheduler of '", options_.model_name, "'");
  // A message per bucket, besides the few of the waiter; both versions may have room reserved.
  spawn.mailbox_capacity = std::max(limits::kMailboxCapacity, instance_->plan.slots().size() * 2);
  scheduler_ = Spawn<BucketScheduler>(MakeExecutor(), std::move(spawn), std::move(scheduler),
                                      PlanInstanceLoan(instance_.get()));
  sink_.set_scheduler(scheduler_);
  waiter_.set_scheduler(scheduler_);
  sink_.Arm(instance_->plan);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PlanInstance>> ModelRounds::Impl::MakeInstance(
    Plan plan, Round first, uint64_t capacity_bytes) {
  auto instance = std::make_unique<PlanInstance>(std::move(plan));
  for (const BucketLayout& bucket : instance->plan.buckets()) {
    absl::StatusOr<Pipeline> pipeline = options_.pipeline_factory(bucket);
    if (!pipeline.ok()) return Annotate(pipeline.status(), instance->plan.Describe(bucket.id));
    instance->pipelines.push_back(*std::move(pipeline));
  }
  RETURN_IF_ERROR(MakeStorage(*instance, capacity_bytes));
  instance->tracker =
      std::make_unique<ReadyTracker>(instance->plan, *instance->storage, sink_, first);
  return instance;
}

// The memory of the plan in force where that is large enough, once nothing can fail any more.
absl::Status ModelRounds::Impl::MakeStorage(PlanInstance& instance, uint64_t capacity_bytes) {
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

void ModelRounds::Impl::Forget(const PlanInstance& instance) {
  const Region* const region = instance.storage->region();
  if (region != nullptr && options_.deregister_region != nullptr) {
    options_.deregister_region(region->id());
  }
}

absl::Status ModelRounds::Impl::EndRound() {
  if (std::exchange(round_ended_, true)) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", tracker().round().value(), " has ended already"));
  }
  const absl::Status ended = tracker().EndRound();
  if (!ended.ok()) Abort(ended);
  return ended;
}

Future<void> ModelRounds::Impl::RoundDone(absl::Time deadline) {
  Future<void> done = scheduler_.Ask(AwaitRound{tracker().round(), deadline, {}}, deadline);
  options_.runner->Wake();
  // The scheduler itself enforces the deadline, with a better text than a future has.
  return std::move(done).WithDeadline(absl::InfiniteFuture());
}

absl::Status ModelRounds::Impl::WaitRound(absl::Time deadline) {
  const TraceSpan span("wait round", -1, tracker().round().value());
  return CloseRound(Await(RoundDone(deadline), deadline + kAnswerGrace));
}

absl::Status ModelRounds::Impl::Await(Future<void> future, absl::Time deadline) {
  const absl::Status interrupted =
      WaitHook::Current() == nullptr ? waiter_.WaitFor(future, deadline) : absl::OkStatus();
  if (interrupted.ok()) return std::move(future).Await(deadline);
  const absl::Status reason = Annotate(
      interrupted, absl::StrCat("model '", options_.model_name, "', rank ", options_.rank.value(),
                                ", round ", tracker().round().value()));
  Abort(AsAbort(reason));
  // What the peers may still write belongs to them until the rounds have ended (OWN-1).
  future.WaitUntil(Clock::Real().Now() + kAnswerGrace);
  return reason;
}

absl::Status ModelRounds::Impl::CloseRound(absl::Status status) {
  result_round_ = tracker().round();
  if (!status.ok()) tracker().AbandonRound();
  if (status.ok() && options_.device != nullptr) status = options_.device->JoinPipelines();
  if (status.ok()) status = ReadTails();
  sink_.Arm(instance_->plan);
  tracker().OpenRound();
  if (options_.on_round != nullptr) options_.on_round(tracker().round());
  round_ended_ = false;
  return status;
}

bool ModelRounds::Impl::AnyUnusedHere(const BucketLayout& bucket) const {
  return std::any_of(bucket.slots.begin(), bucket.slots.end(),
                     [this](SlotId slot) { return !instance_->tracker->UsedHere(slot); });
}

absl::Status ModelRounds::Impl::ReadTails() {
  if (options_.device == nullptr) return absl::OkStatus();
  const Plan& plan = instance_->plan;
  const absl::Time deadline = WaitClock().Now() + options_.operation_timeout;
  tails_.resize(plan.buckets().size());
  for (const BucketLayout& bucket : plan.buckets()) {
    if (!bucket.has_used_tail() || !AnyUnusedHere(bucket)) continue;
    std::vector<std::byte>& tail = tails_[static_cast<size_t>(bucket.id.value())];
    tail.resize(bucket.slots.size() * SizeOf(bucket.dtype));
    RETURN_IF_ERROR(options_.device->Read(tail.data(), instance_->storage->TailOf(bucket.id),
                                          tail.size(), deadline));
  }
  return absl::OkStatus();
}

SlotResult ModelRounds::Impl::ResultOf(SlotId slot) const {
  const SlotLayout& layout = instance_->plan.slot(slot);
  const BucketLayout& bucket = instance_->plan.bucket(layout.bucket);
  const Pipeline& pipeline = instance_->pipelines[static_cast<size_t>(layout.bucket.value())];
  SlotResult result{instance_->storage->DataOf(slot), layout.size_bytes, true};
  if (!pipeline.RunsIn(result_round_)) {
    result.used_by_any = instance_->tracker->UsedHere(slot);
  } else if (options_.device != nullptr && instance_->tracker->UsedHere(slot)) {
    result.used_by_any = true;
  } else if (pipeline.yields_used_tail() && bucket.has_used_tail()) {
    const size_t element_bytes = SizeOf(bucket.dtype);
    const std::byte* const tail = options_.device == nullptr
                                      ? instance_->storage->TailOf(bucket.id)
                                      : tails_[static_cast<size_t>(bucket.id.value())].data();
    result.used_by_any =
        AnyNonZero(tail + static_cast<size_t>(layout.index) * element_bytes, element_bytes);
  }
  return result;
}

absl::Status ModelRounds::Impl::BeginOrder() {
  std::vector<int32_t> order;
  for (SlotId slot : tracker().ReadyOrder()) order.push_back(slot.value());
  return BeginAgreement(std::move(order));
}

absl::Status ModelRounds::Impl::BeginAgreement(std::vector<int32_t> words) {
  words_ = std::move(words);
  const size_t size_bytes = words_.size() * sizeof(int32_t);
  void* data = words_.data();
  if (options_.device != nullptr) {
    ASSIGN_OR_RETURN(words_on_device_, options_.device->Allocate(size_bytes));
    RETURN_IF_ERROR(options_.device->Write(words_on_device_, words_.data(), size_bytes,
                                           WaitClock().Now() + options_.operation_timeout));
    data = words_on_device_;
  }
  RunOperation request;
  request.operation.kind = OperationKind::kBroadcast;
  request.operation.dtype = DType::kInt32;
  request.operation.count = words_.size();
  request.operation.peer = 0;
  request.operation.set_target(Locate(data, size_bytes));
  agreeing_ = scheduler_.Ask(std::move(request), absl::InfiniteFuture());
  options_.runner->Wake();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SlotId>> ModelRounds::Impl::AgreeOnOrder(absl::Time deadline) {
  if (!agreeing_.has_value()) RETURN_IF_ERROR(BeginOrder());
  ASSIGN_OR_RETURN(const std::vector<int32_t> words, Agreed(deadline));
  std::vector<SlotId> order;
  for (int32_t slot : words) order.emplace_back(slot);
  return order;
}

absl::StatusOr<std::vector<int32_t>> ModelRounds::Impl::Agreed(absl::Time deadline) {
  if (!agreeing_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", options_.model_name, "': no agreement was begun"));
  }
  const absl::Status status = Await(*std::exchange(agreeing_, std::nullopt), deadline);
  if (absl::IsDeadlineExceeded(status)) Abort(status);
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(FetchWords(deadline));
  return words_;
}

// After a failure the device may still be at the memory: then the queue's end releases it.
absl::Status ModelRounds::Impl::FetchWords(absl::Time deadline) {
  if (options_.device == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(options_.device->Read(words_.data(), words_on_device_,
                                        words_.size() * sizeof(int32_t), deadline));
  options_.device->Release(words_on_device_);
  return absl::OkStatus();
}

absl::Status ModelRounds::Impl::AwaitDevice(absl::Time deadline) {
  if (options_.device == nullptr) return absl::OkStatus();
  Future<void> quiet = scheduler_.Ask(pelton::AwaitDevice{}, absl::InfiniteFuture());
  options_.runner->Wake();
  return Await(std::move(quiet), deadline);
}

absl::Status ModelRounds::Impl::Replan(absl::Span<const SlotId> order, absl::Time deadline) {
  RETURN_IF_ERROR(AwaitDevice(deadline));
  ASSIGN_OR_RETURN(Plan plan, instance_->plan.Reordered(order));
  return MoveTo(std::move(plan), 0, deadline);
}

// Memory that has to be made is made large enough for every size: with a bucket for each tensor
// there is the most of what lies between them.
absl::Status ModelRounds::Impl::Resize(absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                                       absl::Time deadline) {
  RETURN_IF_ERROR(AwaitDevice(deadline));
  ASSIGN_OR_RETURN(Plan plan, instance_->plan.Resized(order, bucket_size_bytes));
  ASSIGN_OR_RETURN(const Plan largest, instance_->plan.Resized(order, 1));
  return MoveTo(std::move(plan), largest.flat_bytes(), deadline);
}

absl::Status ModelRounds::Impl::MoveTo(Plan plan, uint64_t capacity_bytes, absl::Time deadline) {
  ASSIGN_OR_RETURN(std::unique_ptr<PlanInstance> next,
                   MakeInstance(std::move(plan), tracker().round(), capacity_bytes));
  InstallPlan request{PlanInstanceLoan(next.get()), {}};
  Future<void> installed = scheduler_.Ask(std::move(request), absl::InfiniteFuture());
  options_.runner->Wake();
  const absl::Status status = std::move(installed).Await(deadline);
  if (!status.ok()) {
    Forget(*next);
    return status;
  }
  instance_.swap(next);  // the scheduler has given the old one back
  if (instance_->storage->region() == nullptr) {
    instance_->storage->TakeMemoryOf(*next->storage);
  }
  CopySlotStates(SlotStatesOf(*next), SlotStatesOf(*instance_));
  Forget(*next);
  sink_.Arm(instance_->plan);
  return absl::OkStatus();
}

void ModelRounds::Impl::Abort(const absl::Status& reason) {
  options_.runner->Abort(reason);
  scheduler_.Send(AbortRounds{reason}).IgnoreError();  // dead: everyone has heard
  options_.runner->Wake();
}

absl::StatusOr<std::unique_ptr<ModelRounds>> ModelRounds::Create(Plan plan,
                                                                 ModelRoundsOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  RETURN_IF_ERROR(impl->Start(std::move(plan)));
  return std::unique_ptr<ModelRounds>(new ModelRounds(std::move(impl)));
}

ModelRounds::ModelRounds(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelRounds::~ModelRounds() = default;

const Plan& ModelRounds::plan() const { return impl_->instance().plan; }
Round ModelRounds::round() const { return impl_->instance().tracker->round(); }
void ModelRounds::SetMode(RoundMode mode) { impl_->tracker().set_mode(mode); }
std::byte* ModelRounds::DataOf(SlotId slot) const {
  return impl_->instance().storage->DataOf(slot);
}
absl::Status ModelRounds::MarkReady(SlotId slot) { return impl_->tracker().MarkReady(slot); }
absl::Status ModelRounds::MarkReady(SlotId slot, void* data) {
  return impl_->tracker().MarkReady(slot, data);
}
absl::Status ModelRounds::MarkUnused(SlotId slot, void* data) {
  return impl_->tracker().MarkUnused(slot, data);
}
std::vector<SlotId> ModelRounds::UnmarkedSlots() const {
  return impl_->instance().tracker->UnmarkedSlots();
}
absl::Status ModelRounds::EndRound() { return impl_->EndRound(); }
absl::Status ModelRounds::WaitRound(absl::Time deadline) { return impl_->WaitRound(deadline); }
Future<void> ModelRounds::RoundDone(absl::Time deadline) { return impl_->RoundDone(deadline); }
absl::Status ModelRounds::CloseRound(absl::Status status) {
  return impl_->CloseRound(std::move(status));
}
SlotResult ModelRounds::ResultOf(SlotId slot) const { return impl_->ResultOf(slot); }
std::vector<SlotId> ModelRounds::ReadyOrder() const {
  return impl_->instance().tracker->ReadyOrder();
}
absl::Status ModelRounds::BeginOrder() { return impl_->BeginOrder(); }
absl::StatusOr<std::vector<SlotId>> ModelRounds::AgreeOnOrder(absl::Time deadline) {
  return impl_->AgreeOnOrder(deadline);
}
absl::Status ModelRounds::BeginAgreement(std::vector<int32_t> words) {
  return impl_->BeginAgreement(std::move(words));
}
absl::StatusOr<std::vector<int32_t>> ModelRounds::Agreed(absl::Time deadline) {
  return impl_->Agreed(deadline);
}
BucketTimes& ModelRounds::times() { return impl_->times(); }
absl::Status ModelRounds::Replan(absl::Span<const SlotId> order, absl::Time deadline) {
  return impl_->Replan(order, deadline);
}
absl::Status ModelRounds::Resize(absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                                 absl::Time deadline) {
  return impl_->Resize(order, bucket_size_bytes, deadline);
}
void ModelRounds::Abort(const absl::Status& reason) { impl_->Abort(reason); }

bool ModelRounds::Communicates(SlotId slot) const {
  const PlanInstance& instance = impl_->instance();
  const auto bucket = static_cast<size_t>(instance.plan.slot(slot).bucket.value());
  return instance.pipelines[bucket].RunsIn(instance.tracker->round());
}

void ModelRounds::Prime() {
  PlanInstance& instance = impl_->instance();
  for (const BucketLayout& bucket : instance.plan.buckets()) {
    instance.pipelines[static_cast<size_t>(bucket.id.value())].Prime(
        bucket, instance.storage->FlatOf(bucket.id));
  }
}

std::vector<SlotState> ModelRounds::States() { return SlotStatesOf(impl_->instance()); }

}  // namespace pelton
