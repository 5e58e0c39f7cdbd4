#include "comm/transport/shm/shm_communicator.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/operation_check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/memory/region.h"

namespace pelton::shm {
namespace {

// Half a microsecond: giving away a core that nobody else wants costs little more than a look.
constexpr int kSpins = 20;

Context WithRegions(Context context, const SharedList<RegionId>& registered) {
  context.registered = &registered;
  return context;
}

}  // namespace

ShmCommunicator::ShmCommunicator(CommunicatorId id, Generation generation, Context context,
                                 OnClose on_close)
    : id_(id),
      generation_(generation),
      context_(WithRegions(std::move(context), registered_)),
      on_close_(std::move(on_close)),
      abort_(context_),
      collective_(context_, point_to_point_),
      point_to_point_(context_),
      neighbors_(context_) {}

ShmCommunicator::~ShmCommunicator() {
  on_close_(this);
  if (!IsIdle()) {
    const absl::Status closed = absl::CancelledError("closed with operations in flight");
    abort_.Throw(closed, /*is_death=*/false);
    // Their memory goes back to its owner (OWN-1).
    while (!TakeMemoryBack()) sched_yield();
    FailAll(closed);
  }
  registered_.ForEach([this](RegionId region) { context_.links.Deregister(region); });
}

int ShmCommunicator::spins() const { return context_.has_core_per_rank ? kSpins : 0; }

uint64_t ShmCommunicator::piece_bytes() const {
  const bool takes_pieces =
      context_.world_size() > 1 && context_.native_kinds.Contains(OperationKind::kAllReduce);
  return takes_pieces ? Collective::kStageBytes : 0;
}

absl::Status ShmCommunicator::Register(const Region& region) {
  RETURN_IF_ERROR(context_.links.Register(region));
  registered_.Add(region.id());
  return absl::OkStatus();
}

void ShmCommunicator::Deregister(RegionId region) {
  if (registered_.Remove(region)) context_.links.Deregister(region);
}

absl::Status ShmCommunicator::Prepare(Operation* operation, Queued* queued) const {
  RETURN_IF_ERROR(CheckOperation(*operation, rank(), world_size()));
  ASSIGN_OR_RETURN(const OperationMemory memory,
                   ResolveOperation(*operation, rank(), world_size()));
  operation->communicator = id_;
  operation->generation = generation_;
  operation->set_source(context_.Reachable(operation->source(), memory.source));
  operation->set_target(context_.Reachable(operation->target(), memory.target));
  queued->operation = *operation;
  queued->source = memory.source;
  queued->target = memory.target;
  return absl::OkStatus();
}

// While a peer is still writing its reason the operation is taken in, to end with that.
absl::Status ShmCommunicator::CheckOpen() const {
  const std::optional<absl::Status> reason = abort_.is_thrown() ? abort_.Reason() : std::nullopt;
  if (reason) return *reason;
  if (completions_.has_room()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "rank ", context_.rank, ": ", completions_.in_flight(), " operations are in flight"));
}

absl::StatusOr<Completion> ShmCommunicator::LaunchToNeighbors(const Operation& operation,
                                                              Stream& stream) {
  ASSIGN_OR_RETURN(NeighborOperation checked,
                   CheckNeighborOperation(operation, stream, rank(), world_size()));
  RETURN_IF_ERROR(CheckOpen());
  Operation reachable = operation;
  reachable.set_source(context_.Reachable(operation.source(), checked.memory.source));
  BreakIfFailed(neighbors_.Start(reachable, completions_.launched() + 1, std::move(checked)),
                operation);
  const Completion completion = completions_.Begin().completion;
  Progress();  // shows it to the peers at once
  return completion;
}

absl::StatusOr<Completion> ShmCommunicator::Launch(const Operation& operation, Stream& stream) {
  if (IsNeighborKind(operation.kind)) return LaunchToNeighbors(operation, stream);
  if (stream.device() != DeviceKind::kHost) {
    return absl::InvalidArgumentError("stream: this transport works on host memory only");
  }
  RETURN_IF_ERROR(CheckOpen());
  Operation checked = operation;
  Queued queued;
  RETURN_IF_ERROR(Prepare(&checked, &queued));
  queued.ticket = completions_.launched() + 1;
  if (IsPointToPoint(operation.kind)) {
    RETURN_IF_ERROR(CheckTag(operation));
    std::byte* const memory =
        operation.kind == OperationKind::kSend ? queued.source : queued.target;
    BreakIfFailed(point_to_point_.Start(queued.operation, queued.ticket, memory), operation);
  } else {
    RETURN_IF_ERROR(collective_.Check(operation));
    queue_.push_back(queued);
  }
  const Completion completion = completions_.Begin().completion;
  Progress();  // shows it to the peers at once
  return completion;
}

absl::Status ShmCommunicator::CheckTag(const Operation& operation) const {
  if (!IsTagOfPrograms(operation.tag)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", context_.rank, ": tag: ", operation.tag,
                                                 " of ", NameOf(operation.kind),
                                                 " is one of the collectives'"));
}

absl::StatusOr<Completion> ShmCommunicator::LaunchInPieces(const Operation& operation,
                                                           Pieces& pieces) {
  if (piece_bytes() == 0) return Communicator::LaunchInPieces(operation, pieces);
  RETURN_IF_ERROR(CheckOpen());
  RETURN_IF_ERROR(CheckOperation(operation, rank(), world_size()));
  const uint64_t size_bytes = ExtentOf(operation, rank(), world_size()).source_bytes;
  if (operation.kind != OperationKind::kAllReduce || size_bytes <= piece_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", context_.rank, ": ", Describe(operation), " is no allreduce of more than ",
        piece_bytes(), " bytes and cannot be launched in pieces; launch it as a whole"));
  }
  Queued queued{operation, completions_.launched() + 1};
  queued.operation.communicator = id_;
  queued.operation.generation = generation_;
  // The peers read it piece by piece, too.
  queued.operation.set_source({kPrivateRegion, 0});
  queued.operation.set_target({kPrivateRegion, 0});
  queued.pieces = &pieces;
  queue_.push_back(queued);
  const Completion completion = completions_.Begin().completion;
  Progress();
  return completion;
}

absl::StatusOr<std::optional<Rank>> ShmCommunicator::FindSender(int32_t tag) {
  const std::optional<absl::Status> reason = abort_.is_thrown() ? abort_.Reason() : std::nullopt;
  if (reason) return *reason;
  // First, because they may have sent before that.
  const bool have_all_left =
      HowManyHaveLeft() >= static_cast<size_t>(std::max(context_.world_size() - 1, 1));
  const int peer = point_to_point_.FindSender(tag);
  if (peer != kNoPeer) return Rank(peer);
  if (have_all_left) return absl::NotFoundError("all other ranks have left");
  return std::nullopt;
}

size_t ShmCommunicator::HowManyHaveLeft() const {
  return has_anybody_left_.load(std::memory_order_acquire) ? left_.size() : 0;
}

bool ShmCommunicator::Progress() {
  if (abort_.is_thrown()) return ProgressAborted();
  // Before the steps, which then see all that these ranks did before they left: whoever is still
  // needed after them has left too early. One that leaves meanwhile may have done its part after a
  // step has looked.
  const size_t have_left = HowManyHaveLeft();
  bool moved = AdvanceCollectives();
  moved = point_to_point_.LookIfSought() || moved;
  moved = (!point_to_point_.is_idle() && AdvancePointToPoint()) || moved;
  moved = (!neighbors_.is_idle() && AdvanceNeighbors()) || moved;
  if (moved || have_left == 0) return moved;
  return EndIfLeft(have_left);
}

bool ShmCommunicator::EndIfLeft(size_t have_left) {
  bool has_ended = false;
  size_t looked_at = 0;
  left_.ForEach([&](const std::pair<int, absl::Status>& left) {
    if (has_ended || looked_at++ >= have_left || !Needs(left.first)) return;
    abort_.Throw(left.second, /*is_death=*/true);
    has_ended = true;
  });
  return has_ended;
}

// A rank that leaves has nothing in flight, so a collective that it came to needs it no more.
bool ShmCommunicator::Needs(int member) const {
  if (point_to_point_.Needs(member) || neighbors_.Needs(member)) return true;
  if (queue_.empty()) return false;
  const uint64_t newest =
      collective_.sequence() + queue_.size() - (collective_.is_active() ? 1 : 0);
  return !context_.arena.rank(member).board.HasArrived(newest);
}

bool ShmCommunicator::AdvanceCollectives() {
  if (!collective_.is_active()) {
    if (queue_.empty()) return false;
    Queued& next = queue_.front();
    // What was shared when it was launched may be no more.
    if (IsUnshared(next.operation.source_region)) {
      next.operation.set_source(context_.Reachable(next.operation.source(), next.source));
    }
    if (IsUnshared(next.operation.target_region)) {
      next.operation.set_target(context_.Reachable(next.operation.target(), next.target));
    }
    collective_.Start(next.operation, next.source, next.target, next.pieces);
  }
  bool done = false;
  absl::Status status;
  const bool moved = collective_.Step(&done, &status);
  if (!done) return moved;
  if (status.ok() && IsUnshared(collective_.written_by_peers())) {
    status = absl::UnavailableError(
        "its shared memory was taken back meanwhile from a rank that had stopped while it wrote "
        "there for another communicator");
  }
  const bool is_fatal = !status.ok() && !absl::IsInvalidArgument(status);
  if (is_fatal) return Break(status);
  completions_.End(queue_.front().ticket, status);
  queue_.pop_front();
  return true;
}

// An error after the end changes nothing: if it counted as a move, whoever drives would go on for
// ever, because each look has the same error.
bool ShmCommunicator::Break(const absl::Status& reason) {
  if (abort_.is_thrown()) return false;
  abort_.Throw(reason, /*is_death=*/false);
  return true;
}

void ShmCommunicator::BreakIfFailed(const absl::Status& started, const Operation& operation) {
  const absl::Status annotated = Annotate(started, [&] {
    return absl::StrCat("rank ", context_.name(context_.rank), ": ", NameOf(operation.kind));
  });
  if (!annotated.ok()) Break(annotated);
}

void ShmCommunicator::EndMessage(uint64_t ticket, const absl::Status& status) {
  if ((ticket & kIsMessageOfProgram) != 0) return collective_.EndMessage(ticket, status);
  completions_.End(ticket, status);
}

bool ShmCommunicator::AdvancePointToPoint() {
  absl::StatusOr<bool> moved = point_to_point_.Step(
      [this](uint64_t ticket, const absl::Status& status) { EndMessage(ticket, status); });
  return moved.ok() ? *moved : Break(moved.status());
}

bool ShmCommunicator::AdvanceNeighbors() {
  absl::StatusOr<bool> moved = neighbors_.Step(
      [this](uint64_t ticket, const absl::Status& status) { completions_.End(ticket, status); });
  return moved.ok() ? *moved : Break(moved.status());
}

bool ShmCommunicator::ProgressAborted() {
  if (IsIdle()) return false;
  const std::optional<absl::Status> reason = abort_.Reason();
  if (!reason) return false;
  if (abort_.IsDeath()) {
    const bool moved = AdvanceCollectives();
    if (moved || (!point_to_point_.is_idle() && AdvancePointToPoint())) return true;
    if (!neighbors_.is_idle() && AdvanceNeighbors()) return true;
  }
  if (!TakeMemoryBack()) return false;
  FailAll(*reason);
  return true;
}

bool ShmCommunicator::TakeMemoryBack() {
  const AbortSwitch::Peers peers = abort_.CloseMemory();
  if (peers != AbortSwitch::Peers::kStopped) return peers == AbortSwitch::Peers::kQuiet;
  // When the stopped rank goes on it must find nothing of ours. Without memory for that we wait on:
  // handing back what changes by itself is worse.
  const RegionId region =
      collective_.is_active() ? collective_.written_by_peers() : RegionId(kPrivateRegion);
  if (region == kPrivateRegion) return true;
  const absl::Status unshared = Unshare(region);
  return unshared.ok() || absl::IsNotFound(unshared);
}

void ShmCommunicator::FailAll(const absl::Status& reason) {
  collective_.Cancel();
  queue_.clear();
  point_to_point_.Cancel();
  neighbors_.Cancel();
  completions_.EndAll(reason);
}

OperationRunner::State ShmCommunicator::Query(Completion completion) {
  const State state = completions_.Query(completion);
  if (state.done || !abort_.is_thrown()) return state;
  ProgressAborted();
  return completions_.Query(completion);
}

// Why no wake-up is lost stands in doorbell.h. A Wake that comes while this rank sleeps, or after
// it has slept, may be forgotten, because the caller looks again once Park returns. Throw rings
// whether this rank is parked or not. Only a peer that leaves this rank's memory after an abort
// rings nobody; a rank that waits for that in an abort looks again when its own limit for a Park is
// over (at most 20 ms).
void ShmCommunicator::Park(absl::Time until) {
  context_.arena.rank(context_.rank)
      .doorbell.Park(
          context_.arena.header().parked, wake_, [this] { return Progress(); },
          [until] { return until - Clock::Real().Now(); });
}

void ShmCommunicator::Wake() { context_.arena.rank(context_.rank).doorbell.Wake(wake_); }

void ShmCommunicator::Abort(const absl::Status& reason) {
  abort_.Throw(reason, /*is_death=*/false);
}

void ShmCommunicator::Lose(const Loss& loss) {
  const std::vector<int>& members = context_.world_ranks;
  const auto found = std::find(members.begin(), members.end(), loss.world_rank);
  if (found == members.end()) return;
  if (!loss.has_left) return abort_.Throw(loss.reason, /*is_death=*/true);
  left_.AddNew({static_cast<int>(found - members.begin()), loss.reason});
  has_anybody_left_.store(true);
  Wake();
}

std::vector<Rank> ShmCommunicator::Missing() const {
  std::vector<Rank> missing;
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    if (!context_.arena.rank(peer).board.HasArrived(collective_.sequence())) {
      missing.emplace_back(peer);
    }
  }
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    if (peer != context_.rank && collective_.WaitsForTasksOf(peer)) missing.emplace_back(peer);
  }
  if (missing.empty() && point_to_point_.oldest_peer() != kNoPeer) {
    missing.emplace_back(point_to_point_.oldest_peer());
  }
  if (missing.empty() && neighbors_.oldest_peer() != kNoPeer) {
    missing.emplace_back(neighbors_.oldest_peer());
  }
  return missing;
}

}  // namespace pelton::shm
