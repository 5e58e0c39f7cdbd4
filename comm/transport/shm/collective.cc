#include "comm/transport/shm/collective.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "comm/reduction/reduction.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton::shm {
namespace {

constexpr uint64_t kStageStepBytes = uint64_t{256} << 10;
// What is staged beyond this, where no peer may read a tensor that is no allreduce's, goes back to
// the system with the operation.
constexpr uint64_t kKeptStagingBytes = uint64_t{4} << 20;

// Whether rank `rank` puts data into its eager buffer, and how much every contributor puts there.
bool Contributes(const Operation& operation, int rank) {
  const TensorLength source = TraitsOf(operation.kind).source;
  const bool from_root = source == TensorLength::kNone || IsOnRootOnly(source);
  return !from_root || operation.peer == rank;
}

uint64_t EagerBytesOf(const Operation& operation, int world_size) {
  if (HasNoTensors(operation.kind)) return 0;
  const bool per_rank = HasChunks(TraitsOf(operation.kind).source);
  const uint64_t factor = per_rank ? static_cast<uint64_t>(world_size) : 1;
  return operation.count * SizeOf(operation.dtype) * factor;
}

}  // namespace

Collective::Collective(const Context& context, PointToPoint& point_to_point)
    : context_(context),
      point_to_point_(point_to_point),
      sources_(context.world_size()),
      targets_(context.world_size()),
      source_pointers_(context.world_size()),
      target_pointers_(context.world_size()) {}

Collective::~Collective() { DropStaging(); }

void Collective::DropStaging() {
  if (staging_ != nullptr) context_.links.Deregister(staging_->id());
  staging_.reset();
}

const Operation& Collective::PostOf(int peer) const { return BoardOf(peer).PostOf(sequence()); }

void Collective::Start(const Operation& operation, std::byte* source, std::byte* target,
                       Pieces* pieces) {
  PELTON_CHECK(!is_active());
  whole_ = operation;
  whole_.sequence = ++operation_count_;
  if (RootReadsTarget(whole_.kind) && whole_.peer == context_.rank) {
    whole_.set_source(whole_.target());
    source = target;
  }
  whole_source_ = source;
  whole_target_ = target;
  pieces_ = pieces;
  written_by_peers_ = kPrivateRegion;
  segment_end_ = kNotInSegments;
  Begin(whole_, source, target);
}

void Collective::Begin(const Operation& operation, std::byte* source, std::byte* target) {
  sequence_.store(sequence() + 1, std::memory_order_relaxed);
  operation_ = operation;
  source_ = source;
  target_ = target;
  extent_ = PostedExtentOf(operation_, context_.rank, context_.world_size());
  is_eager_ = RunsByTasks() && EagerBytesOf(operation_, context_.world_size()) <= kEagerBytes;
  unstages_ = false;
  kept_ = {};
  staged_bytes_ = 0;
  arrived_count_ = 0;
  finished_count_ = 0;
  next_task_ = 0;
  const bool has_piece = pieces_ != nullptr && segment_end_ != kNotInSegments;
  phase_ = has_piece || NeedsStaging(extent_.source_bytes) ? Phase::kStage : Phase::kPost;
}

// An allreduce of which some tensor is private, so that the ranks must copy: all of them go through
// it in segments, each a small allreduce of its own.
bool Collective::RunsInSegments() const {
  return operation_.kind == OperationKind::kAllReduce && context_.world_size() > 1 &&
         extent_.source_bytes > kStageBytes && !IsDirect();
}

void Collective::BeginSegment(uint64_t begin) {
  const uint64_t size_bytes = SizeOf(whole_.dtype);
  Operation segment = whole_;
  segment.count = std::min(kStageBytes / size_bytes, whole_.count - begin / size_bytes);
  segment.source_offset += begin;
  segment.target_offset += begin;
  segment_end_ = begin + segment.count * size_bytes;
  if (pieces_ != nullptr) return Begin(segment, nullptr, nullptr);
  Begin(segment, whole_source_ + begin, whole_target_ + begin);
}

void Collective::Cancel() {
  phase_ = Phase::kIdle;
  pieces_ = nullptr;
  if (staging_ != nullptr && staging_->size_bytes() > kKeptStagingBytes) DropStaging();
}

bool Collective::Step(bool* done, absl::Status* status) {
  absl::StatusOr<Outcome> outcome = Advance();
  if (!outcome.ok()) *status = outcome.status();
  const bool has_result = outcome.ok() && *outcome == Outcome::kDone && segment_end_ > 0;
  if (has_result && pieces_ != nullptr) pieces_->GiveBack(PieceIndex());
  if (outcome.ok() && *outcome == Outcome::kDone &&
      segment_end_ < whole_.count * SizeOf(whole_.dtype)) {
    BeginSegment(segment_end_);
    outcome = Outcome::kMoved;
  }
  *done = !outcome.ok() || *outcome == Outcome::kDone;
  if (*done) Cancel();
  return *done || *outcome == Outcome::kMoved;
}

absl::StatusOr<Collective::Outcome> Collective::Advance() {
  switch (phase_) {
    case Phase::kStage:
      return Stage();
    case Phase::kPost:
      return Post();
    case Phase::kArrive:
      return Arrive();
    case Phase::kReach:
      return ReachAll();
    case Phase::kWork:
      return Work();
    case Phase::kFinish:
      return Finish();
    case Phase::kUnstage:
      return Unstage();
    case Phase::kProgram:
      return RunProgram();
    case Phase::kIdle:
      break;
  }
  return Outcome::kWaiting;
}

bool Collective::NeedsStaging(uint64_t source_bytes) const {
  if (is_eager_ || source_bytes == 0 || context_.world_size() == 1) return false;
  if (!RunsByTasks()) return false;
  const bool is_allreduce = operation_.kind == OperationKind::kAllReduce;
  const bool is_private = operation_.source_region == kPrivateRegion ||
                          (is_allreduce && operation_.target_region == kPrivateRegion);
  if (!is_private) return false;
  if (source_bytes <= kStageBytes) return true;
  if (is_allreduce) return false;  // in segments
  for (const int peer : context_.world_ranks) {
    if (!context_.links.reads_us(peer)) return true;
  }
  return false;
}

absl::Status Collective::ProvideStaging(uint64_t size_bytes) {
  if (staging_ != nullptr && staging_->size_bytes() >= size_bytes) return absl::OkStatus();
  DropStaging();
  const bool is_kept = size_bytes <= kKeptStagingBytes;
  const uint64_t room = is_kept ? std::bit_ceil(size_bytes) : size_bytes;
  ASSIGN_OR_RETURN(staging_, Region::Create(room, "staging"));
  return context_.links.Register(*staging_);
}

// Done before the others have arrived: while waiting there is nothing better to do. Of an allreduce
// this rank's own slice stays where it is, because no other rank reads it: on two ranks that is
// half of the copying, and of a large tensor most of the time.
absl::StatusOr<Collective::Outcome> Collective::Stage() {
  if (pieces_ != nullptr) return TakePiece();
  if (staged_bytes_ == 0) {
    RETURN_IF_ERROR(ProvideStaging(extent_.source_bytes));
    unstages_ = operation_.kind == OperationKind::kAllReduce;
    const TaskList tasks(operation_, context_.world_size(), TaskList::Mode::kDirect);
    if (unstages_) kept_ = tasks.SliceOf(context_.rank);
  }
  if (!CopyStaged(staging_->data(), source_, extent_.source_bytes)) return Outcome::kMoved;
  operation_.set_source({staging_->id(), 0});
  if (unstages_) operation_.set_target({staging_->id(), 0});
  phase_ = Phase::kPost;
  return Outcome::kMoved;
}

// The next bytes of `size_bytes`, without those of the slice that is kept. True when all are
// copied.
bool Collective::CopyStaged(std::byte* to, const std::byte* from, uint64_t size_bytes) {
  if (staged_bytes_ == kept_.begin) staged_bytes_ += kept_.size_bytes;
  const uint64_t end = staged_bytes_ < kept_.begin ? kept_.begin : size_bytes;
  const uint64_t bytes = std::min(kStageStepBytes, end - staged_bytes_);
  std::memcpy(to + staged_bytes_, from + staged_bytes_, bytes);
  staged_bytes_ += bytes;
  if (staged_bytes_ == kept_.begin) staged_bytes_ += kept_.size_bytes;
  const bool is_all = staged_bytes_ == size_bytes;
  if (is_all) staged_bytes_ = 0;  // Unstage begins anew
  return is_all;
}

absl::StatusOr<Collective::Outcome> Collective::TakePiece() {
  const std::optional<Location> place = pieces_->Take(PieceIndex());
  if (!place.has_value()) return Outcome::kWaiting;
  ASSIGN_OR_RETURN(source_, Resolve(*place, extent_.source_bytes));
  target_ = source_;
  operation_.set_source(*place);
  operation_.set_target(*place);
  phase_ = Phase::kPost;
  return Outcome::kMoved;
}

absl::StatusOr<Collective::Outcome> Collective::Post() {
  if (is_eager_ && Contributes(operation_, context_.rank) && extent_.source_bytes > 0) {
    std::memcpy(context_.arena.eager_buffer(context_.rank, sequence()), source_,
                extent_.source_bytes);
  }
  // Until the whole is done, whatever its last segment is. A private source is copied in any case.
  const bool is_copied = unstages_ || (operation_.kind == OperationKind::kAllReduce &&
                                       operation_.source_region == kPrivateRegion);
  const bool is_written =
      !is_eager_ && !is_copied && pieces_ == nullptr && context_.world_size() > 1 && RunsByTasks();
  if (is_written) written_by_peers_ = operation_.target_region;
  // Shows the above, too. Nobody else has the slice that was kept.
  const auto tasks_of = unstages_ ? Board::TasksOf::kOwner : Board::TasksOf::kAnyRank;
  BoardOf(context_.rank).Arrive(sequence(), operation_, tasks_of);
  phase_ = Phase::kArrive;
  // The last to arrive wakes the others: before that there is nothing for them to do.
  if (AllArrived()) context_.RingAll();
  return Outcome::kMoved;
}

bool Collective::AllArrived() {
  while (arrived_count_ < context_.world_size()) {
    if (!BoardOf(arrived_count_).HasArrived(sequence())) return false;
    ++arrived_count_;
  }
  return true;
}

// With that of rank 0, so that all ranks come to the same answer.
absl::Status Collective::ComparePosts() const {
  for (int peer = 1; peer < context_.world_size(); ++peer) {
    const std::string difference = DifferenceOf(PostOf(0), Rank(0), PostOf(peer), Rank(peer));
    if (difference.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(Describe(operation_), ": ", difference));
  }
  return absl::OkStatus();
}

absl::StatusOr<Collective::Outcome> Collective::Arrive() {
  if (!AllArrived()) return Outcome::kWaiting;
  RETURN_IF_ERROR(ComparePosts());
  if (!RunsByTasks()) {
    RETURN_IF_ERROR(programs_->Start(operation_, source_, target_));
    phase_ = Phase::kProgram;
    return Outcome::kMoved;
  }
  if (is_eager_) {
    FinishEagerly();
    return Outcome::kDone;
  }
  if (RunsInSegments()) {
    segment_end_ = 0;
    return Outcome::kDone;  // with the post of the whole
  }
  tasks_ = TaskList(operation_, context_.world_size(),
                    IsDirect() ? TaskList::Mode::kDirect : TaskList::Mode::kPull);
  phase_ = Phase::kReach;
  return Outcome::kMoved;
}

absl::Status Collective::Check(const Operation& operation) {
  if (context_.native_kinds.Contains(operation.kind)) return absl::OkStatus();
  if (programs_ == nullptr) programs_ = std::make_unique<Programs>(context_, point_to_point_);
  return programs_->Check(operation);
}

absl::StatusOr<Collective::Outcome> Collective::RunProgram() {
  ASSIGN_OR_RETURN(const bool is_done, programs_->Advance());
  if (is_done) return Outcome::kDone;
  return programs_->moved() ? Outcome::kMoved : Outcome::kWaiting;
}

// One synchronisation in all: the eager buffers hold everything. Each rank adds all of them up by
// itself, in rank order.
void Collective::FinishEagerly() {
  const uint64_t bytes = operation_.count * SizeOf(operation_.dtype);
  const uint64_t own_place = bytes * static_cast<uint64_t>(context_.rank);
  if (extent_.target_bytes == 0) return;
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    source_pointers_[peer] = context_.arena.eager_buffer(peer, sequence());
  }
  switch (operation_.kind) {
    case OperationKind::kReduceScatter:
      for (const std::byte*& source : source_pointers_) source += own_place;
      [[fallthrough]];
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
      return Reduce(source_pointers_, {&target_, 1}, operation_.count, operation_.dtype,
                    operation_.reduce_op);
    case OperationKind::kBroadcast:
      std::memcpy(target_, source_pointers_[operation_.peer], bytes);
      return;
    case OperationKind::kScatter:
      std::memcpy(target_, source_pointers_[operation_.peer] + own_place, bytes);
      return;
    case OperationKind::kAllToAll:
      for (const std::byte*& source : source_pointers_) source += own_place;
      [[fallthrough]];
    default:  // allgather, gather
      for (size_t peer = 0; peer < source_pointers_.size(); ++peer) {
        std::memcpy(target_ + peer * bytes, source_pointers_[peer], bytes);
      }
  }
}

// All ranks answer this alike: it depends on the posts only.
bool Collective::IsDirect() const {
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    const Operation& post = PostOf(peer);
    const Extent extent = PostedExtentOf(post, peer, context_.world_size());
    if (extent.source_bytes > 0 && post.source_region == kPrivateRegion) return false;
    if (extent.target_bytes > 0 && post.target_region == kPrivateRegion) return false;
  }
  return true;
}

absl::StatusOr<Collective::Outcome> Collective::ReachAll() {
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    const Operation& post = PostOf(peer);
    const Extent extent = PostedExtentOf(post, peer, context_.world_size());
    if (peer == context_.rank) {
      const bool is_copied = staging_ != nullptr && post.source_region == staging_->id();
      sources_[peer].data = is_copied && !unstages_ ? staging_->data() : source_;
      targets_[peer].data = unstages_ ? staging_->data() : target_;
      continue;
    }
    absl::StatusOr<Reach> source = ReachOf(context_, peer, post.source(), extent.source_bytes);
    absl::StatusOr<Reach> target = ReachOf(context_, peer, post.target(), extent.target_bytes);
    if (extent.source_bytes == 0) source = Reach();
    if (extent.target_bytes == 0) target = Reach();
    if (absl::IsNotFound(source.status()) || absl::IsNotFound(target.status())) {
      // Its registration is on its way to us; or the others have done our work, and it is gone.
      if (!AllFinished()) return Outcome::kWaiting;
      phase_ = Phase::kFinish;
      return Outcome::kMoved;
    }
    ASSIGN_OR_RETURN(sources_[peer], std::move(source));
    ASSIGN_OR_RETURN(targets_[peer], std::move(target));
  }
  phase_ = Phase::kWork;
  return Outcome::kMoved;
}

absl::StatusOr<Collective::Outcome> Collective::Work() {
  return tasks_.mode() == TaskList::Mode::kDirect ? RunAnyTask() : RunOwnTask();
}

absl::StatusOr<Collective::Outcome> Collective::RunOwnTask() {
  const int rank = context_.rank;
  if (next_task_ == tasks_.TaskCount(rank)) {
    phase_ = Phase::kFinish;
    return Outcome::kMoved;
  }
  const Task task = tasks_.At(rank, next_task_);
  ASSIGN_OR_RETURN(
      const bool has_run,
      Reading(context_).Try([&](const Reading& reading) { return MayRead(reading, task); },
                            [&] { return Run(rank, task); }));
  if (!has_run) return Outcome::kWaiting;
  ++next_task_;
  BoardOf(rank).MarkFinished();
  if (next_task_ == tasks_.TaskCount(rank) && AllFinished()) context_.RingAll();
  return Outcome::kMoved;
}

absl::StatusOr<Collective::Outcome> Collective::RunAnyTask() {
  for (int i = 0; i < context_.world_size(); ++i) {
    const int owner = (context_.rank + i) % context_.world_size();
    // Tells a rank that aborts to wait until we are out of its memory. Whichever comes first, our
    // word or its abort, the other sees it (abort_words.h).
    MemoryGate& gate = context_.arena.rank(context_.rank).gate;
    gate.Enter(MemoryGate::kWriting);
    if (context_.IsAborted()) {
      gate.Leave();
      if (!AllFinished()) return Outcome::kWaiting;
      break;  // a rank has left after the others had done all the work: that is no failure
    }
    const std::optional<uint64_t> index = NextTask(owner);
    if (!index.has_value()) {
      gate.Leave();
      continue;
    }
    const absl::Status ran = Run(owner, tasks_.At(owner, *index));
    gate.Leave();
    RETURN_IF_ERROR(ran);
    BoardOf(owner).MarkFinished();
    return Outcome::kMoved;
  }
  phase_ = Phase::kFinish;
  // Whoever did the last task wakes those that wait for the end.
  if (AllFinished()) context_.RingAll();
  return Outcome::kMoved;
}

std::optional<uint64_t> Collective::NextTask(int owner) {
  const uint64_t count = tasks_.TaskCount(owner);
  if (!unstages_ || owner != context_.rank) return BoardOf(owner).Claim(sequence(), count);
  return next_task_ < count ? std::optional(next_task_++) : std::nullopt;
}

bool Collective::MayRead(const Reading& reading, const Task& task) const {
  if (task.kind != Task::kReduce) return reading.MayRead(task.from);
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    if (!reading.MayRead(peer)) return false;
  }
  return true;
}

absl::Status Collective::Run(int owner, const Task& task) {
  if (task.kind == Task::kReduce) return RunReduction(owner, task);
  return sources_[task.from].Read(task.source_offset, targets_[owner].data + task.target_offset,
                                  task.size_bytes);
}

absl::Status Collective::RunReduction(int owner, const Task& task) {
  const int world_size = context_.world_size();
  const bool all_mapped = std::all_of(sources_.begin(), sources_.end(),
                                      [](const Reach& source) { return source.data != nullptr; });
  if (!all_mapped && scratch_.size() < world_size * task.size_bytes) {
    scratch_.resize(world_size * task.size_bytes);
  }
  for (int peer = 0; peer < world_size; ++peer) {
    const Reach& source = sources_[peer];
    if (source.data != nullptr) {
      source_pointers_[peer] = source.data + task.source_offset;
      continue;
    }
    std::byte* const copy = scratch_.data() + peer * task.size_bytes;
    RETURN_IF_ERROR(source.Read(task.source_offset, copy, task.size_bytes));
    source_pointers_[peer] = copy;
  }
  size_t target_count = 0;
  for (int peer = 0; peer < world_size; ++peer) {
    const bool is_target = tasks_.targets() == TaskTargets::kAll ||
                           (tasks_.targets() == TaskTargets::kOwner && peer == owner) ||
                           (tasks_.targets() == TaskTargets::kRoot && peer == operation_.peer);
    if (!is_target) continue;
    const bool is_kept = unstages_ && owner == context_.rank && peer == owner;
    target_pointers_[target_count++] =
        (is_kept ? target_ : targets_[peer].data) + task.target_offset;
  }
  Reduce(source_pointers_, {target_pointers_.data(), target_count},
         task.size_bytes / SizeOf(operation_.dtype), operation_.dtype, operation_.reduce_op);
  return absl::OkStatus();
}

bool Collective::WaitsForTasksOf(int peer) const {
  if (phase_ != Phase::kReach && phase_ != Phase::kWork && phase_ != Phase::kFinish) return false;
  const Board& board = BoardOf(peer);
  const bool are_its_own = tasks_.mode() == TaskList::Mode::kPull || board.KeepsTasks(sequence());
  if (are_its_own) return !board.HasFinished(sequence(), tasks_.TaskCount(peer));
  // The others do all tasks but the one that it is in the middle of.
  if (context_.arena.rank(peer).gate.busy() != MemoryGate::kWriting) return false;
  for (int owner = 0; owner < context_.world_size(); ++owner) {
    if (!BoardOf(owner).HasFinished(sequence(), tasks_.TaskCount(owner))) return true;
  }
  return false;
}

bool Collective::AllFinished() {
  while (finished_count_ < context_.world_size()) {
    const uint64_t count = tasks_.TaskCount(finished_count_);
    if (!BoardOf(finished_count_).HasFinished(sequence(), count)) return false;
    ++finished_count_;
  }
  return true;
}

absl::StatusOr<Collective::Outcome> Collective::Finish() {
  if (!AllFinished()) return Outcome::kWaiting;
  for (Reach& reach : sources_) reach = Reach();
  for (Reach& reach : targets_) reach = Reach();
  if (!unstages_) return Outcome::kDone;
  phase_ = Phase::kUnstage;
  return Outcome::kMoved;
}

absl::StatusOr<Collective::Outcome> Collective::Unstage() {
  const bool is_all = CopyStaged(target_, staging_->data(), extent_.target_bytes);
  return is_all ? Outcome::kDone : Outcome::kMoved;
}

}  // namespace pelton::shm
