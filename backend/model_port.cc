#include "backend/model_port.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backend/link/attach.h"
#include "backend/link/link_client.h"
#include "backend/link/link_socket.h"
#include "backend/link/linked_model.h"
#include "core/actor/wait_hook.h"
#include "core/base/status.h"
#include "core/memory/device_queue.h"
#include "core/memory/dtype.h"
#include "core/plan/plan.h"
#include "core/plan/round_mode.h"
#include "core/round/model_state.h"

namespace pelton {
namespace {

constexpr char kOpenResult[] = "result of the open round";

Schedule ScheduleOf(const Algorithm& algorithm, bool on_call) {
  Schedule schedule = algorithm.schedule();
  if (on_call) schedule.trigger = TriggerKind::kOnCall;
  return schedule;
}

// Takes the results of a round that was open out of `state`: the rounds know nothing of them.
std::vector<TensorState> TakeOpenResults(ModelState& state) {
  const auto is_kept = [](const TensorState& tensor) { return tensor.key != kOpenResult; };
  const auto begin = std::stable_partition(state.tensors.begin(), state.tensors.end(), is_kept);
  std::vector<TensorState> results(std::make_move_iterator(begin),
                                   std::make_move_iterator(state.tensors.end()));
  state.tensors.erase(begin, state.tensors.end());
  return results;
}

// The states of a group of another size keep what Reshard deals out. What is one for all of them
// goes into `options.state`: how many rounds have been, of ranks that run apart the most of them;
// the order, and the results of a round that was open, which a mean over the ranks has made.
void TakeWhatIsOne(PortOptions& options) {
  for (ModelState& state : options.states) {
    options.state.rounds = std::max(options.state.rounds, state.rounds);
    std::vector<TensorState> results = TakeOpenResults(state);
    if (&state == &options.states.front()) options.state.tensors = std::move(results);
  }
  if (!options.states.empty()) options.state.order = options.states.front().order;
}

// A daemon makes algorithms by name. It has no GPU: what another process puts there does not
// overlap with the trainer's kernels, and would cost a context's memory.
bool BelongsInDaemon(const ModelOptions& options, const std::vector<TensorSpec>& specs) {
  return AlgorithmRegistry::Get().Find(options.algorithm).ok() &&
         std::all_of(specs.begin(), specs.end(), [](const TensorSpec& tensor) {
           return tensor.device.kind == DeviceKind::kHost;
         });
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(Backend& backend, const ModelOptions& options,
                                                 std::unique_ptr<Algorithm> algorithm,
                                                 std::vector<TensorSpec> specs) {
  LinkClient* const link = LinkOf(backend.control());
  if (link == nullptr || !BelongsInDaemon(options, specs)) {
    return Model::Create(backend, options, std::move(algorithm), std::move(specs));
  }
  const absl::Time deadline = WaitClock().Now() + backend.options().join_timeout;
  proto::LinkHello hello;
  hello.set_purpose(proto::LinkHello::ROUNDS);
  proto::LinkWelcome welcome;
  ASSIGN_OR_RETURN(std::unique_ptr<LinkSocket> socket, link->Connect(hello, &welcome, deadline));
  LinkedJob job;
  job.rank = backend.rank();
  job.on_failure = [&backend](const absl::Status& reason) { backend.Report(reason); };
  job.failure = [&backend, group = options.group] { return backend.WhyNotWith(group); };
  job.standstill = &backend.absences().standstill();
  return AttachModel(std::move(socket), std::move(job), options, std::move(algorithm),
                     std::move(specs), deadline);
}

}  // namespace

ModelSource ModelSource::Of(Backend& backend) {
  ModelSource source;
  source.make = [&backend](const ModelOptions& options, std::unique_ptr<Algorithm> algorithm,
                           std::vector<TensorSpec> tensors) {
    return MakeModel(backend, options, std::move(algorithm), std::move(tensors));
  };
  source.failure = [&backend] { return backend.failure(); };
  source.parent = backend.session();
  return source;
}

absl::StatusOr<std::unique_ptr<ModelPort>> ModelPort::Create(Backend& backend, PortOptions options,
                                                             std::unique_ptr<Algorithm> algorithm,
                                                             std::vector<TensorSpec> specs,
                                                             TensorPort& tensors) {
  options.model.timeout = OperationTimeoutOf(options.model, backend);
  return Create(ModelSource::Of(backend), std::move(options), std::move(algorithm),
                std::move(specs), tensors);
}

absl::StatusOr<std::unique_ptr<ModelPort>> ModelPort::Create(ModelSource source,
                                                             PortOptions options,
                                                             std::unique_ptr<Algorithm> algorithm,
                                                             std::vector<TensorSpec> specs,
                                                             TensorPort& tensors) {
  const Schedule schedule = ScheduleOf(*algorithm, options.on_call);
  if (!schedule.ranks_share_rounds && schedule.trigger != TriggerKind::kTimer) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model '", options.model.name, "': the rounds of algorithm ", options.model.algorithm,
        " are each rank's own and begin by a timer, not ", NameOf(schedule.trigger),
        ", because only a timer's have an end that loses nothing"));
  }
  TakeWhatIsOne(options);
  options.model.first_round = Round(options.state.rounds + 1);
  if (schedule.trigger != TriggerKind::kWhenReady) {
    // Tensors are copied in any case: a segment outside of the buckets would save nothing.
    options.model.standalone_bytes = PlanOptions::kNoStandalone;
  }
  const bool makes_equal = algorithm->RanksAgree() && schedule.commit.kept == 0;
  std::unique_ptr<ModelPort> port(new ModelPort(options, schedule, makes_equal, tensors));
  RETURN_IF_ERROR(
      port->Install(source, std::move(algorithm), std::move(specs), std::move(options)));
  return port;
}

ModelPort::ModelPort(const PortOptions& options, const Schedule& schedule, bool makes_equal,
                     TensorPort& tensors)
    : options_(options.model),
      schedule_(schedule),
      tensors_(tensors),
      trigger_(schedule, makes_equal, options.steps,
               std::any_of(options.state.tensors.begin(), options.state.tensors.end(),
                           [](const TensorState& state) { return state.key == kOpenResult; })),
      order_is_adopted_(options.keeps_order || schedule.trigger != TriggerKind::kWhenReady ||
                        !options.state.order.empty()) {}

absl::Status ModelPort::Install(const ModelSource& source, std::unique_ptr<Algorithm> algorithm,
                                std::vector<TensorSpec> specs, PortOptions options) {
  ModelState& state = options.state;
  tensor_count_ = specs.size();
  for (const TensorSpec& tensor : specs) size_bytes_ += tensor.size_bytes();
  communicates_.assign(tensor_count_, true);
  const bool has_loop = schedule_.trigger == TriggerKind::kTimer;
  if (has_loop && schedule_.ranks_share_rounds) specs.push_back(AveragingLoop::StopTensor());
  ASSIGN_OR_RETURN(model_, source.make(options_, std::move(algorithm), std::move(specs)));
  if (has_loop) {
    PlaceAll();
    return InstallLoop(source);
  }
  if (schedule_.trigger != TriggerKind::kWhenReady) RETURN_IF_ERROR(Prime());
  const std::vector<TensorState> results = TakeOpenResults(state);
  const absl::Time deadline = WaitClock().Now() + options_.timeout;
  RETURN_IF_ERROR(options.states.empty() ? Restore(std::move(state), rounds(), deadline)
                                         : Reshard(options.states, rounds(), deadline));
  PlaceAll();  // a plan that was restored has buckets of its own
  return Reopen(results);
}

absl::Status ModelPort::Prime() {
  PlaceAll();
  for (size_t i = 0; i < tensor_count_; ++i) {
    RETURN_IF_ERROR(tensors_.Bring(SlotId(static_cast<int32_t>(i)), true).status());
  }
  return rounds().Prime(WaitClock().Now() + options_.timeout);
}

absl::Status ModelPort::InstallLoop(const ModelSource& source) {
  AveragingLoopOptions loop;
  loop.pause = schedule_.pause;
  loop.ranks_share_rounds = schedule_.ranks_share_rounds;
  loop.failure = source.failure;
  loop.parent = source.parent;
  loop.model_name = options_.name;
  loop.round_timeout = options_.timeout;
  // Both places are the slot's own in its bucket, which Place has named.
  loop.copy_in = [this](SlotId slot, std::byte*) { return tensors_.Bring(slot, true).status(); };
  loop.add = [this](SlotId slot, const std::byte*) {
    if (slot.value() == 0) loop_rounds_.fetch_add(1, std::memory_order_relaxed);
    tensors_.Merge(slot, schedule_.commit, true);
  };
  ASSIGN_OR_RETURN(loop_, AveragingLoop::Create(rounds(), std::move(loop)));
  return absl::OkStatus();
}

void ModelPort::PlaceAll() {
  for (size_t i = 0; i < tensor_count_; ++i) {
    const SlotId slot(static_cast<int32_t>(i));
    const bool is_own = rounds().plan().slot(slot).standalone;
    tensors_.Place(slot, is_own ? nullptr : rounds().DataOf(slot));
  }
}

absl::Status ModelPort::Post(const TrainingEvent& event) {
  if (schedule_.trigger == TriggerKind::kWhenReady) return OnReady(event);
  const Trigger before = trigger_;
  absl::Status done = DoAll(trigger_.On(event));
  if (!done.ok()) trigger_ = before;
  return done;
}

absl::Status ModelPort::OnReady(const TrainingEvent& event) {
  switch (event.kind) {
    case EventKind::kBackwardBegins:
      is_open_ = true;
      rounds().SetMode(event.is_evaluation ? RoundMode::kEvaluation : RoundMode::kTraining);
      return absl::OkStatus();
    case EventKind::kTensorReady:
      return Mark(SlotId(event.slot), true);
    case EventKind::kBackwardEnds:
      for (SlotId slot : rounds().UnmarkedSlots()) RETURN_IF_ERROR(Mark(slot, false));
      return rounds().EndRound();
    default:
      trigger_.On(event);  // no round is due, but the trigger notes which optimizers have stepped
      return absl::OkStatus();
  }
}

absl::Status ModelPort::Mark(SlotId slot, bool is_used) {
  ASSIGN_OR_RETURN(const TensorPort::Brought brought, tensors_.Bring(slot, is_used));
  void* const data = rounds().plan().slot(slot).standalone ? brought.data : nullptr;
  if (tuning_ != nullptr) tuning_->SlotReady(slot);
  if (!brought.is_used) return rounds().MarkUnused(slot, data);
  return data == nullptr ? rounds().MarkReady(slot) : rounds().MarkReady(slot, data);
}

absl::Status ModelPort::DoAll(absl::Span<const RoundAction> actions) {
  for (RoundAction action : actions) RETURN_IF_ERROR(Do(action));
  return absl::OkStatus();
}

absl::Status ModelPort::Do(RoundAction action) {
  switch (action) {
    case RoundAction::kBegin:
      return Begin();
    case RoundAction::kFinish:
      return Finish();
    case RoundAction::kFinishUnchanged:
      return FinishUnchanged();
    case RoundAction::kNoteTensors:
      fingerprint_.reset();
      if (is_open_) fingerprint_ = tensors_.Fingerprint();
      return absl::OkStatus();
    case RoundAction::kClaim:
      RETURN_IF_ERROR(CheckLoop());
      return loop_->Claim(WaitClock().Now() + options_.timeout);
    case RoundAction::kRelease:
      if (loop_ != nullptr && !IsForkedChild()) loop_->Release();
      return absl::OkStatus();
    case RoundAction::kResume:
      RETURN_IF_ERROR(CheckLoop());
      return loop_->Resume();
  }
  return absl::OkStatus();
}

absl::Status ModelPort::Begin() {
  RETURN_IF_ERROR(CheckNotForkedChild());
  RETURN_IF_ERROR(failure_);
  if (is_open_) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", rounds().round().value(), " of model '", options_.name,
                     "' is open; end it before the next one begins"));
  }
  is_open_ = true;
  failure_ = MarkAll();
  return failure_;
}

// What is not communicated in this round is marked as well: every round has all tensors (ALL-1).
absl::Status ModelPort::MarkAll() {
  for (size_t i = 0; i < tensor_count_; ++i) {
    const SlotId slot(static_cast<int32_t>(i));
    communicates_[i] = rounds().Communicates(slot);
    if (communicates_[i]) {
      statistics_.bytes += spec(i).size_bytes();
      statistics_.copied_bytes += 2 * spec(i).size_bytes();
      RETURN_IF_ERROR(Mark(slot, true));
    } else {
      RETURN_IF_ERROR(rounds().MarkReady(slot));
    }
  }
  return rounds().EndRound();
}

absl::Status ModelPort::Wait() {
  RETURN_IF_ERROR(Finish());
  trigger_.RoundEnded();
  return absl::OkStatus();
}

absl::Status ModelPort::Finish() {
  RETURN_IF_ERROR(failure_);
  if (!is_open_) return absl::OkStatus();
  is_open_ = false;
  const absl::Time deadline = WaitClock().Now() + options_.timeout;
  if (!has_results_) failure_ = WaitRound();
  RETURN_IF_ERROR(failure_);
  has_results_ = false;
  failure_ = MergeAll(deadline);
  RETURN_IF_ERROR(failure_);
  if (tuning_ != nullptr) return tuning_->RoundEnded();
  return order_is_adopted_ ? absl::OkStatus() : rounds().BeginOrder();
}

absl::Status ModelPort::MergeAll(absl::Time deadline) {
  RETURN_IF_ERROR(tensors_.BeginMerge(deadline));
  for (size_t i = 0; i < tensor_count_; ++i) {
    const SlotId slot(static_cast<int32_t>(i));
    if (!communicates_[i]) continue;
    tensors_.Merge(slot, schedule_.commit, rounds().ResultOf(slot).used_by_any);
  }
  return tensors_.EndMerge();
}

absl::Status ModelPort::FinishUnchanged() {
  const bool is_noted = fingerprint_.has_value() && is_open_;
  // What was noted is kept where it differs, so that the next attempt is refused, too.
  if (is_noted && *fingerprint_ != tensors_.Fingerprint()) {
    return absl::FailedPreconditionError(
        "the weights changed by something that is no torch.optim.Optimizer, after a backward pass "
        "that another one could follow (retain_graph=True, or outputs of another forward pass that "
        "live); the round of decentralized averaging that is under way would undo it. End the "
        "iteration with a backward pass that frees the last graph, or step with an optimizer of "
        "torch's");
  }
  fingerprint_.reset();
  return Finish();
}

absl::Status ModelPort::WaitRound() {
  const absl::Time start = WaitClock().Now();
  absl::Status status = rounds().WaitRound(start + options_.timeout);
  // A tensor that is communicated when it is ready takes the result in the stream's order, and
  // loses nothing by one that never comes: it is made anew. A weight is not (COMMIT-1).
  if (status.ok() && schedule_.trigger != TriggerKind::kWhenReady) {
    status = rounds().AwaitDevice(WaitClock().Now() + options_.timeout);
  }
  statistics_.wait_seconds += absl::ToDoubleSeconds(WaitClock().Now() - start);
  if (status.ok()) ++statistics_.rounds;
  return status;
}

absl::Status ModelPort::CheckLoop() const {
  RETURN_IF_ERROR(CheckNotForkedChild());
  if (loop_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "averaging of model '", options_.name, "' has ended; make the model again to average on"));
}

absl::Status ModelPort::Stop(absl::Duration timeout) {
  if (schedule_.trigger != TriggerKind::kTimer) return absl::OkStatus();
  RETURN_IF_ERROR(DoAll(trigger_.Stop()));
  RETURN_IF_ERROR(CheckLoop());
  return loop_->Stop(WaitClock().Now() + timeout);
}

absl::Status ModelPort::Resume() {
  if (schedule_.trigger != TriggerKind::kTimer) return absl::OkStatus();
  return DoAll(trigger_.Resume());
}

absl::StatusOr<ModelState> ModelPort::State() {
  if (schedule_.trigger == TriggerKind::kTimer) return ModelState();  // of the tensors alone
  RETURN_IF_ERROR(failure_);
  if (is_open_ && schedule_.delay == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", rounds().round().value(), " of model '", options_.name,
                     "' is open: its state can be told once it has ended"));
  }
  if (is_open_ && !has_results_) {
    failure_ = WaitRound();
    RETURN_IF_ERROR(failure_);
    has_results_ = true;
  }
  ASSIGN_OR_RETURN(ModelState state, StateOf(rounds(), WaitClock().Now() + options_.timeout));
  if (is_open_) AddOpenResults(state);
  return state;
}

void ModelPort::AddOpenResults(ModelState& state) const {
  for (size_t i = 0; i < tensor_count_; ++i) {
    if (!communicates_[i]) continue;
    const std::byte* const data = rounds().DataOf(SlotId(static_cast<int32_t>(i)));
    state.tensors.push_back({.key = kOpenResult,
                             .tensor = spec(i).name,
                             .dtype = spec(i).dtype,
                             .bytes = {data, data + spec(i).size_bytes()}});
  }
}

absl::Status ModelPort::Reopen(const std::vector<TensorState>& results) {
  if (results.empty()) return absl::OkStatus();
  is_open_ = has_results_ = true;
  communicates_.assign(tensor_count_, false);
  for (const TensorState& result : results) {
    size_t i = 0;
    while (i < tensor_count_ && spec(i).name != result.tensor) ++i;
    if (i == tensor_count_) {
      return absl::InvalidArgumentError(
          absl::StrCat("state: the model has no tensor '", result.tensor,
                       "'; load the state of a model with the same tensors"));
    }
    if (result.dtype != spec(i).dtype || result.bytes.size() != spec(i).size_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("state: the result for '", result.tensor, "' has ",
                       result.bytes.size() / SizeOf(result.dtype), " elements of ",
                       NameOf(result.dtype), ", not ", spec(i).count, " of ", NameOf(spec(i).dtype),
                       "; load the state of a model with the same tensors"));
    }
    std::memcpy(rounds().DataOf(SlotId(static_cast<int32_t>(i))), result.bytes.data(),
                result.bytes.size());
    communicates_[i] = true;
  }
  return absl::OkStatus();
}

ModelPort::Statistics ModelPort::statistics() const {
  Statistics statistics = statistics_;
  if (schedule_.trigger == TriggerKind::kTimer) {
    statistics.rounds = loop_rounds_.load(std::memory_order_relaxed);
    statistics.copied_bytes = 2 * statistics.rounds * size_bytes_;
  }
  if (schedule_.trigger == TriggerKind::kTimer || schedule_.trigger == TriggerKind::kWhenReady) {
    statistics.bytes = statistics.rounds * size_bytes_;
  }
  if (model_ == nullptr) return statistics;
  statistics.sent_bytes = model_->sent_bytes();
  statistics.plan_generation = rounds().plan().version().value();
  statistics.bucket_size_bytes = rounds().plan().options().bucket_size_bytes;
  return statistics;
}

std::vector<std::vector<std::string>> ModelPort::Buckets() const {
  std::vector<std::vector<std::string>> buckets;
  if (model_ == nullptr) return buckets;
  for (const BucketLayout& bucket : rounds().plan().buckets()) {
    std::vector<std::string> names;
    for (SlotId slot : bucket.slots) {
      const auto i = static_cast<size_t>(slot.value());
      if (i < tensor_count_) names.push_back(spec(i).name);  // not the loop's own
    }
    if (!names.empty()) buckets.push_back(std::move(names));
  }
  return buckets;
}

std::vector<ModelPort::FlatPart> ModelPort::FlatParts() const {
  std::vector<FlatPart> parts;
  if (model_ == nullptr) return parts;
  const Plan& plan = rounds().plan();
  for (const BucketLayout& bucket : plan.buckets()) {
    FlatPart part;
    part.dtype = bucket.dtype;
    part.count = bucket.content_count;
    plan.ForEachFlatSlot(bucket, [&](SlotId slot, uint64_t begin, uint64_t) {
      part.slots.emplace_back(slot, begin);
      if (part.data == nullptr) part.data = rounds().DataOf(slot) - begin * SizeOf(bucket.dtype);
    });
    if (!part.slots.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

void ModelPort::Detach(absl::Duration timeout) {
  if (model_ == nullptr || IsForkedChild()) return;
  // Where the others do not stop in time, they are told by the end of the loop.
  if (loop_ != nullptr && timeout > absl::ZeroDuration()) {
    loop_->Stop(WaitClock().Now() + timeout).IgnoreError();
  }
  is_open_ = has_results_ = false;
  loop_.reset();
  tuning_.reset();
  model_.reset();
}

}  // namespace pelton
