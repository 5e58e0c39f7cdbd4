#include "comm/hierarchy/hierarchical_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/reduction/half.h"
#include "core/base/status.h"

namespace pelton::hierarchy {
namespace {

constexpr uint64_t kCountPerStep = uint64_t{64} << 10;

}  // namespace

WideMean::~WideMean() {
  if (region_ != nullptr) wires_.Deregister(region_->id());
}

bool WideMean::IsFor(const Operation& operation, const Layout& layout) {
  const bool has_equal_hosts = layout.rail_count() * layout.host_count() == layout.world_size();
  return Reduces(operation.kind) && operation.reduce_op == ReduceOp::kAvg &&
         operation.dtype == DType::kFloat16 && !has_equal_hosts;
}

absl::Status WideMean::Start(const Operation& operation, const OperationMemory& memory, Rank rank,
                             WorldSize world_size) {
  const Extent extent = ExtentOf(operation, rank, world_size);
  const uint64_t size = SizeOf(DType::kFloat16);
  source_count_ = extent.source_bytes / size;
  target_count_ = extent.target_bytes / size;
  const bool is_apart = HasChunks(TraitsOf(operation.kind).source);
  target_begin_ = is_apart ? source_count_ : 0;
  const uint64_t size_bytes = (source_count_ + (is_apart ? target_count_ : 0)) * sizeof(float);
  if (region_ == nullptr || region_->size_bytes() < size_bytes) {
    if (region_ != nullptr) wires_.Deregister(region_->id());
    region_.reset();
    ASSIGN_OR_RETURN(region_, Region::Create(std::max<uint64_t>(size_bytes, 1), "wide-mean"));
    RETURN_IF_ERROR(wires_.Register(*region_));
  }
  narrow_ = memory;
  operation_ = operation;
  operation_.dtype = DType::kFloat32;
  operation_.set_source({region_->id(), 0});
  operation_.set_target({region_->id(), target_begin_ * sizeof(float)});
  done_count_ = 0;
  is_active_ = true;
  return absl::OkStatus();
}

OperationMemory WideMean::memory() const {
  return {region_->data(), region_->data() + target_begin_ * sizeof(float)};
}

bool WideMean::Widen() {
  auto* const wide = reinterpret_cast<float*>(region_->data());
  const uint64_t end = std::min(source_count_, done_count_ + kCountPerStep);
  for (; done_count_ < end; ++done_count_) {
    uint16_t bits;
    std::memcpy(&bits, narrow_.source + done_count_ * sizeof bits, sizeof bits);
    wide[done_count_] = FloatFromFloat16(bits);
  }
  if (end < source_count_) return false;
  done_count_ = 0;
  return true;
}

bool WideMean::Narrow() {
  const auto* const wide = reinterpret_cast<const float*>(region_->data()) + target_begin_;
  const uint64_t end = std::min(target_count_, done_count_ + kCountPerStep);
  for (; done_count_ < end; ++done_count_) {
    const uint16_t bits = Float16FromFloat(wide[done_count_]);
    std::memcpy(narrow_.target + done_count_ * sizeof bits, &bits, sizeof bits);
  }
  is_active_ = end < target_count_;
  return !is_active_;
}

namespace {

// How long a sleep on one wire leaves the other one unseen, at first and at most.
constexpr absl::Duration kFirstSlice = absl::Microseconds(50);
constexpr absl::Duration kLastSlice = absl::Milliseconds(1);

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(CommunicatorId id, Generation generation,
                                                   Layout layout, Ends ends, SelectionTable table,
                                                   OnClose on_close, const Clock& clock,
                                                   KindSet staged_kinds)
    : id_(id),
      generation_(generation),
      layout_(std::move(layout)),
      rank_(ends.users_between->rank()),
      table_(std::move(table)),
      on_close_(std::move(on_close)),
      staged_kinds_(staged_kinds),
      users_(layout_, std::move(ends.users_inside), std::move(ends.users_between)),
      collectives_(layout_, std::move(ends.collectives_inside),
                   std::move(ends.collectives_between)),
      roll_call_(collectives_, layout_, rank_, clock),
      run_(collectives_, layout_, rank_.value()),
      wide_(collectives_) {}

HierarchicalCommunicator::~HierarchicalCommunicator() {
  on_close_(this);
  if (!queue_.empty() || !pairs_.empty()) {
    Abort(absl::CancelledError("closed with operations in flight"));
  }
  // Before the roll call and the stages go: peers may be reading what they have sent.
  users_.Close();
  collectives_.Close();
}

absl::Status HierarchicalCommunicator::Register(const Region& region) {
  RETURN_IF_ERROR(users_.Register(region));
  return collectives_.Register(region);
}

void HierarchicalCommunicator::Deregister(RegionId region) {
  users_.Deregister(region);
  collectives_.Deregister(region);
}

absl::StatusOr<Completion> HierarchicalCommunicator::Launch(const Operation& operation,
                                                            Stream& stream) {
  if (stream.device() != DeviceKind::kHost) {
    return absl::InvalidArgumentError("stream: hosts are joined on their own memory only");
  }
  RETURN_IF_ERROR(ended_.Get());
  RETURN_IF_ERROR(CheckOperation(operation, rank_, world_size()));
  ASSIGN_OR_RETURN(const OperationMemory memory, ResolveOperation(operation, rank_, world_size()));
  if (!completions_.has_room()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", rank_.value(), ": ", completions_.in_flight(), " operations are in flight"));
  }
  RETURN_IF_ERROR(Enqueue(operation, memory));
  const Completion completion = completions_.Begin().completion;
  Progress();  // shows it to the peers at once
  return completion;
}

absl::StatusOr<std::optional<Rank>> HierarchicalCommunicator::FindSender(int32_t tag) {
  RETURN_IF_ERROR(ended_.Get());
  absl::StatusOr<std::optional<Rank>> found = users_.FindSender(tag);
  if (!found.ok() && !absl::IsNotFound(found.status())) Abort(found.status());
  return found;
}

absl::Status HierarchicalCommunicator::Enqueue(const Operation& operation,
                                               const OperationMemory& memory) {
  if (IsPointToPoint(operation.kind)) {
    HostStream stream;
    const absl::StatusOr<Completion> launched = users_.Launch(operation, stream);
    if (launched.ok()) {
      pairs_.push_back({completions_.launched() + 1, *launched, Rank(operation.peer)});
    } else if (!absl::IsInvalidArgument(launched.status())) {
      Abort(launched.status());
    }
    return launched.status();
  }
  Collective& collective =
      queue_.emplace_back(Collective{completions_.launched() + 1, operation, memory});
  collective.operation.communicator = id_;
  collective.operation.generation = generation_;
  collective.operation.sequence = ++collective_count_;
  return absl::OkStatus();
}

bool HierarchicalCommunicator::Progress() {
  if (ended_.is_given()) return Drain();
  bool moved = users_.Progress();
  moved = collectives_.Progress() || moved;
  moved = PollPairs() || moved;
  if (ended_.is_given()) return true;
  const absl::StatusOr<bool> advanced = AdvanceCollective();
  if (advanced.ok()) return *advanced || moved;
  Abort(advanced.status());
  return true;
}

bool HierarchicalCommunicator::PollPairs() {
  bool moved = false;
  for (size_t i = 0; i < pairs_.size();) {
    const State state = users_.Query(pairs_[i].completion);
    if (!state.done) {
      ++i;
      continue;
    }
    moved = true;
    if (!state.status.ok() && !absl::IsInvalidArgument(state.status)) {
      Abort(state.status);
      return true;
    }
    completions_.End(pairs_[i].ticket, state.status);
    pairs_.erase(pairs_.begin() + static_cast<ptrdiff_t>(i));
  }
  return moved;
}

absl::StatusOr<bool> HierarchicalCommunicator::AdvanceCollective() {
  if (queue_.empty()) return false;
  if (phase_ == Phase::kIdle) {
    roll_call_.Start(queue_.front().operation);
    phase_ = Phase::kCallsRoll;
  }
  switch (phase_) {
    case Phase::kCallsRoll:
      return CallRoll();
    case Phase::kWidens:
      if (wide_.Widen()) return BeginStages(wide_.operation(), wide_.memory());
      return true;
    case Phase::kNarrows:
      if (wide_.Narrow()) FinishCollective(absl::OkStatus());
      return true;
    case Phase::kRuns:
    case Phase::kIdle:
      break;
  }
  return Run();
}

absl::StatusOr<bool> HierarchicalCommunicator::CallRoll() {
  ASSIGN_OR_RETURN(const bool all_came, roll_call_.Advance());
  if (!all_came) return roll_call_.moved();
  const absl::Status difference = roll_call_.Difference();
  if (!difference.ok()) {
    FinishCollective(difference);
    return true;
  }
  const Collective& collective = queue_.front();
  if (!IsWide(collective.operation)) {
    return BeginStages(collective.operation, collective.memory);
  }
  RETURN_IF_ERROR(wide_.Start(collective.operation, collective.memory, rank_, world_size()));
  phase_ = Phase::kWidens;
  return true;
}

// A flat recipe rounds the sum of all ranks once.
bool HierarchicalCommunicator::IsWide(const Operation& operation) const {
  return staged_kinds_.Contains(operation.kind) && WideMean::IsFor(operation, layout_);
}

absl::StatusOr<bool> HierarchicalCommunicator::BeginStages(const Operation& operation,
                                                           const OperationMemory& memory) {
  absl::StatusOr<StagedCollective> stages =
      MakeStages(operation, rank_.value(), layout_, table_, staged_kinds_.Contains(operation.kind));
  if (!stages.ok()) {
    FinishCollective(stages.status());  // the same on all ranks, which have not begun
    return true;
  }
  RETURN_IF_ERROR(run_.Start(*std::move(stages), operation, memory));
  phase_ = Phase::kRuns;
  return Run();
}

absl::StatusOr<bool> HierarchicalCommunicator::Run() {
  ASSIGN_OR_RETURN(const bool done, run_.Advance());
  if (!done) return run_.moved();
  if (wide_.is_active()) {
    phase_ = Phase::kNarrows;
  } else {
    FinishCollective(absl::OkStatus());
  }
  return true;
}

void HierarchicalCommunicator::FinishCollective(const absl::Status& status) {
  completions_.End(queue_.front().ticket, status);
  queue_.pop_front();
  phase_ = Phase::kIdle;
}

OperationRunner::State HierarchicalCommunicator::Query(Completion completion) {
  const State state = completions_.Query(completion);
  if (state.done || !ended_.is_given()) return state;
  Drain();
  return completions_.Query(completion);
}

void HierarchicalCommunicator::Park(absl::Time until) {
  absl::Duration slice = kFirstSlice;
  for (bool on_users = false; !wake_.exchange(false); on_users = !on_users) {
    const absl::Time now = Clock::Real().Now();
    if (now >= until) return;
    (on_users ? users_ : collectives_).Park(std::min(until, now + slice));
    if (Progress()) return;
    slice = std::min(2 * slice, kLastSlice);
  }
}

void HierarchicalCommunicator::Wake() {
  wake_.store(true);
  users_.Wake();
  collectives_.Wake();
}

void HierarchicalCommunicator::Abort(const absl::Status& reason) {
  if (!ended_.Give(reason)) return;
  users_.Abort(ended_.Get());
  collectives_.Abort(ended_.Get());
  Wake();
}

// Memory is its user's again when no wire holds it (OWN-1).
bool HierarchicalCommunicator::Drain() {
  if (queue_.empty() && pairs_.empty()) return false;
  bool moved = users_.Progress();
  moved = collectives_.Progress() || moved;
  if (!users_.IsIdle() || !collectives_.IsIdle()) return moved;
  completions_.EndAll(ended_.Get());
  pairs_.clear();
  queue_.clear();
  return true;
}

std::vector<Rank> HierarchicalCommunicator::Missing() const {
  const bool collective_is_oldest =
      !queue_.empty() && (pairs_.empty() || queue_.front().ticket < pairs_.front().ticket);
  if (collective_is_oldest) {
    return phase_ == Phase::kCallsRoll ? roll_call_.Missing() : collectives_.Missing();
  }
  // Which of the two wires has the older one the wires do not know.
  if (pairs_.empty()) return {};
  return {pairs_.front().peer};
}

}  // namespace pelton::hierarchy
