#include "comm/transport/nccl/nccl_communicator.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/transport/nccl/flight.h"
#include "comm/transport/operation_check.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton::nccl {
namespace {

// Nobody wakes us when the device has finished, so a wait looks this often.
constexpr absl::Duration kDevicePollInterval = absl::Microseconds(100);
// NCCL puts an operation on its stream by a thread of its own, and a small one ends, sooner than a
// sleep that is as short as can be: so long after something has moved, a wait yields instead.
constexpr absl::Duration kYieldTime = absl::Microseconds(200);
// How often a wait for the device asks whether the others have given up.
constexpr absl::Duration kHostLookInterval = absl::Milliseconds(1);
// What the others get to close their ends, too.
constexpr absl::Duration kCloseTimeout = absl::Seconds(2);
// Registering waits for NCCL to take calls, no longer.
constexpr absl::Duration kRegisterTimeout = absl::Seconds(2);
constexpr size_t kScratchBytes = 64;

}  // namespace

NcclCommunicator::NcclCommunicator(CommunicatorParts parts, OnClose on_close)
    : library_(parts.library),
      runtime_(parts.runtime),
      endings_(parts.endings),
      host_(std::move(parts.host)),
      generation_(parts.generation),
      on_close_(std::move(on_close)),
      events_(parts.runtime, parts.device),
      posts_(*host_),
      resources_{parts.runtime, events_, posts_, parts.device, nullptr, parts.agree_first},
      kernels_path_(std::move(parts.kernels_path)) {}

NcclCommunicator::~NcclCommunicator() {
  on_close_(this);
  const std::vector<std::shared_ptr<NativeCommunicator>> natives = natives_.All();
  const bool in_order = completions_.in_flight() == 0 && !ended_.is_given();
  if (in_order) {
    const absl::Time deadline = Clock::Real().Now() + kCloseTimeout;
    for (const auto& native : natives) native->Finalize();
    for (const auto& native : natives) native->Close(deadline, endings_);
  } else {
    // Before the posts go: the host's communicator receives into them.
    host_->Abort(absl::CancelledError("closed with operations in flight"));
    AbortAll();
  }
  FailQueues(absl::CancelledError("the communicator is closed"));  // gives the events back
  host_.reset();  // before the posts and the queues' ids go: peers may be reading them
  pairs_.clear();
  collectives_.reset();
  if (resources_.scratch != nullptr) runtime_.calls().release(resources_.scratch);
}

std::shared_ptr<NativeCommunicator> NcclCommunicator::MakeNative(absl::string_view what) {
  auto native = std::make_shared<NativeCommunicator>(
      library_, runtime_, resources_.device,
      absl::StrCat("rank ", rank().value(), ": NCCL communicator ", id().value(), what));
  natives_.Add(native);
  return native;
}

absl::Status NcclCommunicator::Connect(const UniqueId& id, absl::Time deadline) {
  {
    const cuda::DeviceScope scope(runtime_, resources_.device);
    RETURN_IF_ERROR(runtime_.ToStatus(runtime_.calls().allocate(&resources_.scratch, kScratchBytes),
                                      "cudaMalloc"));
  }
  collectives_ = std::make_unique<FlightQueue>(resources_, MakeNative(""), 0);
  RETURN_IF_ERROR(collectives_->CreateStream());
  RETURN_IF_ERROR(collectives_->Begin(id, rank().value(), world_size().value()));
  while (true) {
    ASSIGN_OR_RETURN(const bool ready, collectives_->IsReady());
    if (ready) return absl::OkStatus();
    RETURN_IF_ERROR(ended_.Get());
    const absl::Time now = Clock::Real().Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError("ncclCommInitRankConfig is still in progress");
    }
    // NCCL waits on for a rank that has given up.
    host_->Progress();
    RETURN_IF_ERROR(posts_.HostStatus());
    RETURN_IF_ERROR(CheckInterrupt());
    host_->Park(std::min(deadline, now + kDevicePollInterval));
  }
}

absl::Status NcclCommunicator::Refuse(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank().value(), ": ", what));
}

absl::Status NcclCommunicator::Register(const Region& region) {
  RETURN_IF_ERROR(library_.Require(Feature::kRegister));
  RETURN_IF_ERROR(Annotate(AwaitNative(), absl::StrCat("region '", region.name(), "'")));
  absl::StatusOr<void*> registration =
      collectives_->native().Register(region.data(), region.size_bytes());
  if (!registration.ok()) {
    return Annotate(registration.status(), absl::StrCat("region '", region.name(), "'"));
  }
  registrations_.emplace(region.id(), *registration);
  return absl::OkStatus();
}

// While NCCL is busy it takes no call, and what stayed registered would be freed memory; what is
// broken or aborted has nothing to take back.
void NcclCommunicator::Deregister(RegionId region) {
  const auto found = registrations_.find(region);
  if (found == registrations_.end()) return;
  const absl::Status ready = AwaitNative();
  if (ready.ok() || absl::IsDeadlineExceeded(ready)) {
    collectives_->native().Deregister(found->second);
  }
  registrations_.erase(found);
}

// Blocks: for kRegisterTimeout.
absl::Status NcclCommunicator::AwaitNative() {
  const absl::Time deadline = Clock::Real().Now() + kRegisterTimeout;
  while (true) {
    ASSIGN_OR_RETURN(const bool ready, collectives_->native().Poll());
    if (ready) return absl::OkStatus();
    if (Clock::Real().Now() >= deadline) {
      return absl::DeadlineExceededError("NCCL is still connecting");
    }
    host_->Park(Clock::Real().Now() + kDevicePollInterval);
  }
}

absl::Status NcclCommunicator::CheckStream(const Stream& stream) const {
  if (stream.device() != DeviceKind::kCuda) return absl::OkStatus();
  const auto& cuda_stream = static_cast<const CudaStream&>(stream);
  const int device = cuda_stream.device_index();
  if (device != resources_.device) {
    return Refuse(
        absl::StrCat("stream: of device ", device, ", the communicator's is ", resources_.device));
  }
  int capture = cuda::kCaptureStatusNone;
  RETURN_IF_ERROR(
      runtime_.ToStatus(runtime_.calls().stream_is_capturing(cuda_stream.handle(), &capture),
                        "cudaStreamIsCapturing"));
  if (capture == cuda::kCaptureStatusNone) return absl::OkStatus();
  // Its events could not be asked for, and our own stream would join the capture and never leave.
  return Refuse("stream: is being captured into a CUDA graph; communicate outside of the capture");
}

absl::Status NcclCommunicator::CheckAndResolve(const Operation& operation, Flight& flight) const {
  if (IsNeighborKind(operation.kind)) {
    ASSIGN_OR_RETURN(NeighborOperation checked,
                     CheckNeighborOperation(operation, rank(), world_size()));
    flight.memory = checked.memory;
    flight.neighbor.table = std::move(checked.table);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckOperation(operation, rank(), world_size()));
  ASSIGN_OR_RETURN(flight.memory, ResolveOperation(operation, rank(), world_size()));
  return absl::OkStatus();
}

absl::Status NcclCommunicator::FindKernel(Flight& flight) {
  if (flight.operation.kind != OperationKind::kNeighborAllReduce) return absl::OkStatus();
  if (mean_kernel_ == nullptr) {
    absl::StatusOr<MeanKernel> found = FindMeanKernel(kernels_path_);
    if (!found.ok()) return Annotate(found.status(), absl::StrCat("rank ", rank().value()));
    mean_kernel_ = *found;
  }
  flight.neighbor.kernel = mean_kernel_;
  return absl::OkStatus();
}

void NcclCommunicator::FillForNeighbors(Flight& flight) const {
  const WeightTable& table = *flight.neighbor.table;
  FillEdges(flight.operation, table, rank(), world_size(), flight.post.edges);
  std::vector<double>& factors = flight.neighbor.factors;
  factors = {table.own()};
  for (const Neighbor& source : table.sources()) factors.push_back(source.weight);
  for (const Neighbor& destination : table.destinations()) factors.push_back(destination.weight);
}

absl::StatusOr<Flight> NcclCommunicator::Prepare(const Operation& operation, const Stream& stream) {
  RETURN_IF_ERROR(CheckStream(stream));
  Flight flight;
  RETURN_IF_ERROR(CheckAndResolve(operation, flight));
  absl::StatusOr<Mapping> mapping = MappingOf(operation, library_);
  if (!mapping.ok()) return Annotate(mapping.status(), absl::StrCat("rank ", rank().value()));
  flight.mapping = *mapping;
  flight.operation = operation;
  flight.has_stream = stream.device() == DeviceKind::kCuda;
  if (flight.has_stream) flight.stream = static_cast<const CudaStream&>(stream).handle();
  flight.is_done = false;
  RETURN_IF_ERROR(FindKernel(flight));
  return flight;
}

void NcclCommunicator::Number(Operation& operation) {
  operation.communicator = id();
  operation.generation = generation_;
  if (IsPointToPoint(operation.kind)) {
    operation.sequence =
        ++launched_pairs_[{operation.kind == OperationKind::kSend, operation.peer}];
  } else {
    operation.sequence = ++launched_collectives_;
  }
}

absl::StatusOr<FlightQueue*> NcclCommunicator::QueueOf(const Operation& operation) {
  if (!IsPointToPoint(operation.kind)) return collectives_.get();
  const bool sends = operation.kind == OperationKind::kSend;
  const auto found = pairs_.find({sends, operation.peer});
  if (found != pairs_.end()) return &found->second->queue();
  auto native = MakeNative(absl::StrCat(sends ? ", to " : ", from ", "rank ", operation.peer));
  auto queue = std::make_unique<PairQueue>(resources_, library_, *host_, std::move(native), sends,
                                           Rank(operation.peer));
  RETURN_IF_ERROR(queue->queue().CreateStream());
  return &pairs_.emplace(Direction{sends, operation.peer}, std::move(queue)).first->second->queue();
}

absl::Status NcclCommunicator::EndBy(const Operation& operation, const absl::Status& reason) {
  Abort(Annotate(reason, absl::StrCat("rank ", rank().value(), ": ", Describe(operation))));
  return ended_.Get();
}

absl::StatusOr<Completion> NcclCommunicator::Launch(const Operation& operation, Stream& stream) {
  RETURN_IF_ERROR(ended_.Get());
  absl::StatusOr<Flight> prepared = Prepare(operation, stream);
  if (!prepared.ok()) return prepared.status();
  if (!completions_.has_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank().value(), ": ", completions_.in_flight(),
                     " operations of communicator ", id().value(), " are in flight"));
  }
  const absl::StatusOr<FlightQueue*> queue = QueueOf(operation);
  if (!queue.ok()) {
    // Not for want of room here, after which the caller would try again: the device's, for example.
    return EndBy(operation, queue.status());
  }
  const CompletionTable::Entry entry = completions_.Begin();
  Flight& flight = flights_[entry.place];
  prepared->post.theirs = std::move(flight.post.theirs);  // keeps its memory
  prepared->post.edges = std::move(flight.post.edges);
  prepared->neighbor.factors = std::move(flight.neighbor.factors);
  flight = *std::move(prepared);
  if (flight.neighbor.table != nullptr) FillForNeighbors(flight);
  flight.ticket = entry.completion.ticket;
  in_flight_.push_back(&flight);
  Number(flight.operation);
  flight.post.mine = flight.operation;
  if (IsPointToPoint(operation.kind)) {
    flight.post.edges.assign(1, {.mine = flight.operation, .peer = Rank(operation.peer)});
  }
  const absl::Status added = (*queue)->Add(flight);
  if (!added.ok()) EndBy(operation, added).IgnoreError();
  AdvanceQueues().IgnoreError();  // the flight knows
  return entry.completion;
}

void NcclCommunicator::Settle() {
  std::erase_if(in_flight_, [this](const Flight* flight) {
    if (flight->is_done) completions_.End(flight->ticket, flight->status);
    return flight->is_done;
  });
}

absl::StatusOr<bool> NcclCommunicator::AdvanceEach(absl::Time now) {
  ASSIGN_OR_RETURN(bool moved, collectives_->Advance(now));
  for (auto& [direction, pair] : pairs_) {
    ASSIGN_OR_RETURN(const bool more, pair->Advance(now));
    moved = moved || more;
  }
  if (now >= next_host_look_ && Busy()) {
    next_host_look_ = now + kHostLookInterval;
    RETURN_IF_ERROR(posts_.HostStatus());
  }
  return moved;
}

absl::StatusOr<bool> NcclCommunicator::AdvanceQueues() {
  if (EndIfAborted()) return true;
  const absl::Time now = Clock::Real().Now();
  const absl::StatusOr<bool> moved = AdvanceEach(now);
  Settle();
  if (moved.ok() && *moved) moved_at_ = now;
  if (moved.ok()) return moved;
  Abort(moved.status());
  EndIfAborted();
  return moved;
}

bool NcclCommunicator::Progress() {
  if (has_drained_) return false;
  const bool host_moved = host_->Progress();
  const absl::StatusOr<bool> moved = AdvanceQueues();
  return !moved.ok() || *moved || host_moved;
}

void NcclCommunicator::FailQueues(const absl::Status& reason) {
  if (collectives_ != nullptr) collectives_->Fail(reason);
  for (auto& [direction, pair] : pairs_) pair->queue().Fail(reason);
}

bool NcclCommunicator::EndIfAborted() {
  if (!ended_.is_given()) return false;
  if (has_drained_) return true;
  has_drained_ = true;
  AbortAll();
  const absl::Status reason = ended_.Get();
  FailQueues(reason);
  for (Flight* const flight : in_flight_) {
    if (flight->is_done) continue;  // what no queue had taken yet
    flight->is_done = true;
    flight->status = reason;
  }
  Settle();
  return true;
}

OperationRunner::State NcclCommunicator::Query(Completion completion) {
  EndIfAborted();
  return completions_.Query(completion);
}

OperationRunner::State NcclCommunicator::Follow(Completion completion, Stream& stream) {
  State state = Query(completion);
  if (state.done || stream.device() != DeviceKind::kCuda) return state;
  const Flight& flight = FlightOf(completion.ticket);
  if (flight.finished == nullptr || !flight.difference.ok()) return state;
  const auto handle = static_cast<const CudaStream&>(stream).handle();
  const bool ran_there = flight.has_stream && flight.stream == handle && flight.ready == nullptr;
  if (ran_there) return {true, absl::OkStatus()};
  return {true, runtime_.ToStatus(runtime_.calls().stream_wait_event(handle, flight.finished, 0),
                                  "cudaStreamWaitEvent")};
}

bool NcclCommunicator::Busy() const {
  return collectives_->needs_polling() ||
         std::any_of(pairs_.begin(), pairs_.end(),
                     [](const auto& pair) { return pair.second->queue().needs_polling(); });
}

void NcclCommunicator::Park(absl::Time until) {
  if (Busy()) {
    const absl::Time now = Clock::Real().Now();
    if (now < moved_at_ + kYieldTime) {
      sched_yield();
      return;
    }
    until = std::min(until, now + kDevicePollInterval);
  }
  host_->Park(until);
}

void NcclCommunicator::Abort(const absl::Status& reason) {
  if (!ended_.Give(reason)) return;
  host_->Abort(ended_.Get());
  host_->Wake();
  BeginAborts();
}

void NcclCommunicator::BeginAborts() {
  for (const auto& native : natives_.All()) {
    endings_.Add([native] { native->Abort(); });
  }
}

// The kernels are told first. What NCCL waits for after that is its peers, of which one may be
// stopped for ever.
void NcclCommunicator::AbortAll() {
  BeginAborts();  // also of one that was made since an earlier abort
  const absl::Time deadline = Clock::Real().Now() + kCloseTimeout;
  for (const auto& native : natives_.All()) native->AwaitEnd(deadline);
  if (collectives_ != nullptr) collectives_->AwaitKernels(deadline);
}

}  // namespace pelton::nccl
