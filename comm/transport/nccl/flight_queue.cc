#include "comm/transport/nccl/flight_queue.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "comm/transport/operation_check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::nccl {
namespace {

// Of a gather: where in its target the tensor of source number `index` begins. Units: bytes.
size_t GatheredBefore(const Flight& flight, size_t index) {
  uint64_t count = 0;
  for (size_t i = 0; i < index; ++i) {
    count += flight.neighbor.table->CountOf(i, flight.operation.count);
  }
  return count * flight.mapping.per_element;
}

// Sends and receives of bytes that go together: those to the same rank match in their order in it.
// Threads: one. Owns: nothing.
class Group {
 public:
  Group(const NcclTable& calls, Handle comm, cuda::StreamHandle stream)
      : calls_(calls), comm_(comm), stream_(stream), result_(calls.group_start()) {}

  void Send(const void* from, size_t size_bytes, int peer) {
    if (result_ != kOk) return;
    Note(calls_.send(from, size_bytes, Type::kInt8, peer, comm_, stream_));
  }
  void Recv(void* into, size_t size_bytes, int peer) {
    if (result_ != kOk) return;
    Note(calls_.recv(into, size_bytes, Type::kInt8, peer, comm_, stream_));
  }
  // The group must be ended also after an error: NCCL counts.
  int End() {
    const int ended = calls_.group_end();
    return result_ == kOk ? ended : result_;
  }

 private:
  void Note(int result) {
    if (result != kInProgress) result_ = result;
  }

  const NcclTable& calls_;
  const Handle comm_;
  const cuda::StreamHandle stream_;
  int result_;
};

// Nothing is sent along an edge that differs, nor where there is nothing, of which both ends know.
void PutToNeighbors(const Flight& flight, Group& group) {
  const NeighborPlace& place = flight.neighbor.place;
  const bool averages = flight.operation.kind == OperationKind::kNeighborAllReduce;
  const bool sends_weights = averages && flight.neighbor.table->sends_weights();
  for (const EdgePost& edge : flight.post.edges) {
    const size_t bytes = edge.mine.count * flight.mapping.per_element;
    if (edge.differs || bytes == 0) continue;
    const int peer = edge.peer.value();
    if (edge.sends()) {
      group.Send(flight.memory.source, bytes, peer);
      if (sends_weights) group.Send(place.leaving + edge.index, sizeof(double), peer);
    } else {
      group.Recv(averages ? place.tensors + edge.index * place.stride_bytes
                          : flight.memory.target + GatheredBefore(flight, edge.index),
                 bytes, peer);
      if (sends_weights) group.Recv(place.arrived + edge.index, sizeof(double), peer);
    }
  }
}

// One chunk to or from each rank, or all of them at the root.
void PutChunks(const Flight& flight, const Destination& to, Group& group) {
  const size_t bytes = flight.operation.count * flight.mapping.per_element;
  const auto send = [&](int peer, int chunk) {
    group.Send(flight.memory.source + static_cast<size_t>(chunk) * bytes, bytes, peer);
  };
  const auto recv = [&](int peer, int chunk) {
    group.Recv(flight.memory.target + static_cast<size_t>(chunk) * bytes, bytes, peer);
  };
  const int root = flight.operation.peer;
  const OperationKind kind = flight.operation.kind;
  for (int peer = 0; peer < to.rank_count; ++peer) {
    if (kind == OperationKind::kAllToAll || (kind == OperationKind::kScatter && to.rank == root)) {
      send(peer, peer);
    }
    if (kind == OperationKind::kAllToAll || (kind == OperationKind::kGather && to.rank == root)) {
      recv(peer, peer);
    }
  }
  if (kind == OperationKind::kGather) send(root, 0);
  if (kind == OperationKind::kScatter) recv(root, 0);
}

int SubmitGrouped(const Flight& flight, const Destination& to, const NcclTable& calls,
                  Handle comm) {
  Group group(calls, comm, to.stream);
  if (IsNeighborKind(flight.operation.kind)) {
    PutToNeighbors(flight, group);
  } else {
    PutChunks(flight, to, group);
  }
  return group.End();
}

// How often NCCL is asked for errors while an operation is on the device: a lock and a load, but
// not for every turn of a loop that waits.
constexpr absl::Duration kErrorPollInterval = absl::Milliseconds(1);

}  // namespace

bool MovesAnything(const Flight& flight) {
  const OperationKind kind = flight.operation.kind;
  if (!IsNeighborKind(kind)) return flight.operation.count > 0 || kind == OperationKind::kBarrier;
  const std::vector<EdgePost>& edges = flight.post.edges;
  return std::any_of(edges.begin(), edges.end(),
                     [](const EdgePost& edge) { return !edge.differs && edge.mine.count > 0; });
}

absl::string_view CallOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kReduce:
      return "ncclReduce";
    case OperationKind::kReduceScatter:
      return "ncclReduceScatter";
    case OperationKind::kAllGather:
      return "ncclAllGather";
    case OperationKind::kBroadcast:
      return "ncclBroadcast";
    case OperationKind::kSend:
      return "ncclSend";
    case OperationKind::kRecv:
      return "ncclRecv";
    case OperationKind::kBarrier:
    case OperationKind::kAllReduce:
      return "ncclAllReduce";
    default:
      return "ncclGroupEnd";
  }
}

int Submit(const Flight& flight, const Destination& to, const NcclTable& calls, Handle comm) {
  const auto [type, per_element, op] = flight.mapping;
  const size_t count = flight.operation.count * per_element;
  const std::byte* source = flight.memory.source;
  std::byte* target = flight.memory.target;
  switch (flight.operation.kind) {
    case OperationKind::kBarrier:
      return calls.all_reduce(to.scratch, to.scratch, 1, Type::kInt32, Op::kSum, comm, to.stream);
    case OperationKind::kAllReduce:
      return calls.all_reduce(source, target, count, type, op, comm, to.stream);
    case OperationKind::kReduce:
      return calls.reduce(source, target, count, type, op, flight.operation.peer, comm, to.stream);
    case OperationKind::kReduceScatter:
      return calls.reduce_scatter(source, target, count, type, op, comm, to.stream);
    case OperationKind::kAllGather:
      return calls.all_gather(source, target, count, type, comm, to.stream);
    case OperationKind::kBroadcast:
      return calls.broadcast(target, target, count, type, flight.operation.peer, comm, to.stream);
    case OperationKind::kSend:
      return calls.send(source, count, type, to.peer, comm, to.stream);
    case OperationKind::kRecv:
      return calls.recv(target, count, type, to.peer, comm, to.stream);
    default:
      return SubmitGrouped(flight, to, calls, comm);
  }
}

FlightQueue::FlightQueue(const QueueResources& resources,
                         std::shared_ptr<NativeCommunicator> native, int peer)
    : resources_(resources), native_(std::move(native)) {
  destination_.peer = peer;
  destination_.scratch = resources.scratch;
}

FlightQueue::~FlightQueue() {
  if (own_stream_ != nullptr) resources_.runtime.calls().stream_destroy(own_stream_);
}

absl::Status FlightQueue::CreateStream() {
  const cuda::DeviceScope scope(resources_.runtime, resources_.device);
  return resources_.runtime.ToStatus(
      resources_.runtime.calls().stream_create_with_flags(&own_stream_, cuda::kStreamNonBlocking),
      "cudaStreamCreateWithFlags");
}

absl::Status FlightQueue::Begin(const UniqueId& id, int rank, int rank_count) {
  destination_.rank = rank;
  destination_.rank_count = rank_count;
  has_begun_ = busy_ = true;
  return native_->Begin(id, rank, rank_count);
}

absl::StatusOr<bool> FlightQueue::IsReady() {
  ASSIGN_OR_RETURN(const bool idle, native_->Poll());
  busy_ = !idle;
  return idle;
}

bool FlightQueue::goes_at_once() const {
  return has_begun_ && !busy_ && !resources_.agree_first && submitted_ == flights_.size();
}

absl::Status FlightQueue::Add(Flight& flight) {
  const bool is_pair = IsPointToPoint(flight.operation.kind);
  if (flight.has_stream && (is_pair || !goes_at_once())) {
    ASSIGN_OR_RETURN(flight.ready, resources_.events.Record(flight.stream));
  }
  flights_.push_back(&flight);
  return absl::OkStatus();
}

absl::StatusOr<bool> FlightQueue::Advance(absl::Time now) {
  // What can go to the device goes before the hosts talk about it.
  ASSIGN_OR_RETURN(const bool changed, AdvanceNative(now));
  ASSIGN_OR_RETURN(const bool submitted_before, SubmitWaiting());
  ASSIGN_OR_RETURN(const bool agreed, AdvancePosts());
  ASSIGN_OR_RETURN(const bool submitted_after, SubmitWaiting());
  ASSIGN_OR_RETURN(const bool completed, CompleteFinished());
  return changed || submitted_before || agreed || submitted_after || completed;
}

absl::StatusOr<bool> FlightQueue::AdvancePosts() {
  bool moved = false;
  for (size_t i = 0; i < flights_.size(); ++i) {
    Flight& flight = *flights_[i];
    if (flight.agreed) continue;
    const Post::Phase before = flight.post.phase;
    const absl::StatusOr<bool> agreed = resources_.posts.Advance(flight.post);
    if (!agreed.ok()) {
      const bool alone = resources_.agree_first && PostExchange::IsDisagreement(flight.post);
      if (!alone) return agreed.status();
      if (IsNeighborKind(flight.operation.kind)) {
        // The ranks at the other edges know nothing of it, and wait for theirs.
        flight.difference = agreed.status();
        flight.agreed = moved = true;
        continue;
      }
      // All ranks see the same difference and drop the operation, which never began.
      Finish(flight, agreed.status());
      flights_.erase(flights_.begin() + static_cast<ptrdiff_t>(i--));
      moved = true;
      continue;
    }
    flight.agreed = *agreed;
    moved = moved || *agreed || flight.post.phase != before;
    // Posts leave and arrive in order: what is behind this one has nothing new.
    const bool all_sent = flights_.back()->post.phase >= Post::Phase::kSent;
    if (!*agreed && (all_sent || flight.post.phase < Post::Phase::kSent)) break;
  }
  return moved;
}

absl::StatusOr<bool> FlightQueue::AdvanceNative(absl::Time now) {
  if (!has_begun_ || (!busy_ && (submitted_ == 0 || now < next_error_poll_))) return false;
  next_error_poll_ = now + kErrorPollInterval;
  ASSIGN_OR_RETURN(const bool idle, native_->Poll());
  if (!busy_ || !idle) return false;
  busy_ = false;
  // Only now is it on the stream: an event put there earlier would be past before it began.
  if (submitted_ > 0 && flights_[submitted_ - 1]->finished == nullptr) {
    RETURN_IF_ERROR(MarkEnd(*flights_[submitted_ - 1]));
  }
  return true;
}

absl::StatusOr<bool> FlightQueue::SubmitWaiting() {
  bool moved = false;
  while (has_begun_ && !busy_ && submitted_ < flights_.size()) {
    Flight& flight = *flights_[submitted_];
    if (resources_.agree_first && !flight.agreed) break;
    RETURN_IF_ERROR(Annotate(SubmitOne(flight), Describe(flight.operation)));
    moved = true;
  }
  return moved;
}

absl::Status FlightQueue::SubmitOne(Flight& flight) {
  const bool runs_on_callers = flight.has_stream && flight.ready == nullptr;
  destination_.stream = runs_on_callers ? flight.stream : own_stream_;
  if (flight.ready != nullptr) {
    RETURN_IF_ERROR(resources_.runtime.ToStatus(
        resources_.runtime.calls().stream_wait_event(own_stream_, flight.ready, 0),
        "cudaStreamWaitEvent"));
  }
  if (flight.neighbor.kernel != nullptr) {
    RETURN_IF_ERROR(neighbor_memory().Begin(flight, destination_.stream));
  }
  ++submitted_;
  // Nothing to move: it only keeps its place in the stream.
  if (MovesAnything(flight)) {
    const absl::string_view call = CallOf(flight.operation.kind);
    ASSIGN_OR_RETURN(const bool is_on_stream,
                     native_->Call(call, [&](const NcclTable& calls, Handle comm) {
                       return Submit(flight, destination_, calls, comm);
                     }));
    busy_ = !is_on_stream;
    if (busy_) return absl::OkStatus();
  }
  return MarkEnd(flight);
}

NeighborMemory& FlightQueue::neighbor_memory() {
  if (neighbor_memory_ == nullptr) {
    neighbor_memory_ =
        std::make_unique<NeighborMemory>(resources_.runtime, resources_.events, resources_.device);
  }
  return *neighbor_memory_;
}

absl::Status FlightQueue::MarkEnd(Flight& flight) {
  if (flight.neighbor.kernel != nullptr) {
    RETURN_IF_ERROR(neighbor_memory_->End(flight, destination_.stream));
  }
  ASSIGN_OR_RETURN(flight.finished, resources_.events.Record(destination_.stream));
  return absl::OkStatus();
}

absl::StatusOr<bool> FlightQueue::CompleteFinished() {
  bool moved = false;
  while (submitted_ > 0 && flights_.front()->finished != nullptr && flights_.front()->agreed) {
    Flight& flight = *flights_.front();
    absl::StatusOr<bool> is_past = resources_.events.IsPast(flight.finished);
    if (!is_past.ok()) return Annotate(is_past.status(), Describe(flight.operation));
    if (!*is_past) break;
    Finish(flight, flight.difference);
    flights_.pop_front();
    --submitted_;
    moved = true;
  }
  return moved;
}

void FlightQueue::AwaitKernels(absl::Time deadline) {
  for (size_t i = 0; i < submitted_; ++i) {
    const Flight& flight = *flights_[i];
    if (flight.neighbor.kernel == nullptr) continue;
    const bool ran_on_callers = flight.has_stream && flight.ready == nullptr;
    auto end = resources_.events.Record(ran_on_callers ? flight.stream : own_stream_);
    while (end.ok() && Clock::Real().Now() < deadline) {
      const absl::StatusOr<bool> is_past = resources_.events.IsPast(*end);
      if (!is_past.ok() || *is_past) break;
      sched_yield();
    }
    if (end.ok()) resources_.events.Return(*end);
  }
}

void FlightQueue::Fail(const absl::Status& reason) {
  for (Flight* flight : flights_) Finish(*flight, reason);
  flights_.clear();
  submitted_ = 0;
  busy_ = false;
}

void FlightQueue::Finish(Flight& flight, const absl::Status& status) {
  resources_.events.Return(std::exchange(flight.ready, nullptr));
  resources_.events.Return(std::exchange(flight.finished, nullptr));
  flight.is_done = true;
  flight.status = status;
}

absl::Status PairQueue::Open() {
  if (opening_ == Opening::kNew) {
    if (sends_) {
      RETURN_IF_ERROR(
          library_.ToStatus(library_.calls().get_unique_id(&id_), "ncclGetUniqueId", nullptr));
    }
    opening_ = Opening::kIdReady;  // once: NCCL listens for the ranks of each id
  }
  if (opening_ == Opening::kIdReady) {
    const Tensor id{id_.bytes, sizeof id_.bytes, DType::kUInt8};
    ASSIGN_OR_RETURN(const bool is_launched, IsLaunched(sends_ ? Send(host_, id, peer_, kPairIdTag)
                                                               : Recv(host_, id, peer_, kPairIdTag),
                                                        id_message_));
    if (!is_launched) return absl::OkStatus();
    opening_ = Opening::kIdUnderWay;
  }
  const Communicator::State state = host_.Query(id_message_);
  if (!state.done) return absl::OkStatus();
  RETURN_IF_ERROR(state.status);
  opening_ = Opening::kBegun;
  return queue_.Begin(id_, sends_ ? 0 : 1, 2);
}

}  // namespace pelton::nccl
