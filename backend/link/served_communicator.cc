#include "backend/link/served_communicator.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/transport/operation_check.h"
#include "core/actor/backoff.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/status.h"
#include "core/memory/region.h"

namespace pelton {
namespace {

// A trainer that is stopped, by a debugger for instance, takes its answers later.
constexpr absl::Duration kTellPatience = absl::Seconds(60);
// Records that wait for the thread that drives. A trainer of Pelton bounds its launches, but
// another program may be at the other end.
constexpr size_t kMostQueued = 4 * limits::kMaxOperationsInFlight;
// Fewer than in a trainer, because each rank has two processes: Linux's scheduler (EEVDF) lets a
// thread that has yielded often wait for some time slices when it is woken, so that an allreduce of
// 4 KiB takes twice as long on two cores.
constexpr int kYields = 5;
// How long the thread that reads waits for peers in the middle of an operation in pieces, before
// the drive thread does: the hop would take as long as the wait. An abort by the trainer is read
// after one of them.
constexpr absl::Duration kPiecePark = absl::Milliseconds(1);
constexpr int kPieceParks = 5;
constexpr absl::Duration kMissingPatience = absl::Milliseconds(500);
// A call that the drive thread makes may be about to end. One more sees all that it has not, so
// that a third would find nothing.
constexpr size_t kMostCalls = 2;

}  // namespace

ServedCommunicator::ServedCommunicator(Line line, std::shared_ptr<LinkSocket> socket)
    : line_(std::move(line)),
      communicator_(line_.communicator.get()),
      socket_(std::move(socket)),
      regions_({[this](const Region& region) { return communicator_->Register(region); },
                [this](RegionId region) { communicator_->Deregister(region); }}),
      queue_(kMostQueued),
      drive_thread_("pelton-drive", kMostCalls) {}

ServedCommunicator::~ServedCommunicator() {
  is_closing_.store(true);
  reader_looks_.store(false);  // nobody reads any more
  communicator_->Wake();       // the drive thread, which then ends what is in flight
  // What awaits the trainer alone is in no call yet. As in DriveSome where the drive thread
  // refuses.
  if (in_flight_count_.load() > 0) drive_thread_.Add([this] { Drive(); });
}

absl::Status ServedCommunicator::Serve(absl::string_view gone) {
  absl::Status ended;
  while (ended.ok()) {
    // While the trainer alone is awaited, its record wakes this thread, and no peer wakes any.
    const bool looks = has_pieces_.load();
    reader_looks_.store(looks);
    absl::StatusOr<LinkSocket::Message> message = socket_->Receive(
        looks ? Clock::Real().Now() + waits::kLongestParkOnWire : absl::InfiniteFuture());
    if (message.ok()) ended = Take(*std::move(message));
    if (!message.ok() && !absl::IsDeadlineExceeded(message.status())) ended = message.status();
    if (ended.ok()) ended = DriveSome();
  }
  if (absl::IsCancelled(ended)) return absl::OkStatus();  // in good order
  if (absl::IsUnavailable(ended) && MayBeLeft()) {
    is_left_to_heir_ = true;
    return absl::UnavailableError(gone);
  }
  const absl::Status reason = absl::IsUnavailable(ended) ? absl::UnavailableError(gone) : ended;
  communicator_->Abort(reason);
  LinkRecord record;
  record.kind = LinkRecord::kAborted;
  Tell(record, reason);
  return reason;
}

// Only where nothing has happened since the trainer's snapshot: what it has got since then nobody
// knows.
bool ServedCommunicator::MayBeLeft() {
  const auto has_launched = [this] { return launches_.load() != kept_launches_.load(); };
  if (line_.log == nullptr || has_launched()) return false;
  if (!driving_.Take(absl::InfiniteFuture())) return false;
  const TurnHolder driving(&driving_);
  // Whoever had the turn may have launched what was waiting for it.
  return !has_launched() && in_flight_.empty() && held_.empty() && queue_.is_empty() &&
         line_.log->is_whole();
}

// Errors: Cancelled: it was the last one.
absl::Status ServedCommunicator::Take(LinkSocket::Message message) {
  ASSIGN_OR_RETURN(const ParsedRecord parsed, DecodeRecord(message.payload));
  const LinkRecord& record = parsed.record;
  switch (record.kind) {
    case LinkRecord::kAbort:
      communicator_->Abort(parsed.status().ok() ? absl::AbortedError(parsed.text)
                                                : parsed.status());
      return absl::OkStatus();
    case LinkRecord::kRegister:
      // At once, and not in its turn: a launch that follows finds it, and one that came before does
      // not look for it.
      return regions_.Enter(RegionId(static_cast<uint32_t>(record.ticket)), message.descriptors);
    case LinkRecord::kClose:
      return absl::CancelledError("closed");
    case LinkRecord::kLaunch:
    case LinkRecord::kLaunchInPieces:
    case LinkRecord::kFilled:  // by the queue, so that the driving thread looks
    case LinkRecord::kFindSender:
    case LinkRecord::kDeregister:
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "a trainer has sent a record of kind ", record.kind,
          ", which only daemons send; start the trainer and the daemon from one installation"));
  }
  if (queue_.Push(record)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the trainer has ", kMostQueued,
                   " records waiting already; wait for results before further launches"));
}

void ServedCommunicator::Tell(const LinkRecord& record, const absl::Status& status) {
  // A trainer that takes no answers is as good as gone; its reader ends with the connection.
  const absl::Time deadline = Clock::Real().Now() + kTellPatience;
  if (!socket_->Send(EncodeRecord(record, status), {}, deadline).ok()) socket_->Shutdown();
}

void ServedCommunicator::TellDone(uint64_t ticket, const absl::Status& status) {
  LinkRecord answer;
  answer.kind = LinkRecord::kDone;
  answer.ticket = ticket;
  Tell(answer, status);
}

absl::Status ServedCommunicator::Translate(Operation* operation, Launched* launched) const {
  const Rank rank = communicator_->rank();
  const WorldSize world_size = communicator_->world_size();
  RETURN_IF_ERROR(CheckOperation(*operation, rank, world_size));
  const Extent extent = ExtentOf(*operation, rank, world_size);
  if (extent.source_bytes > 0) {
    ASSIGN_OR_RETURN(TrainerRegions::Place place,
                     regions_.PlaceOf(operation->source(), extent.source_bytes, "source"));
    operation->set_source(place.location);
    launched->source = std::move(place.region);
  }
  if (extent.target_bytes > 0) {
    launched->trainers_target = operation->target_region;
    ASSIGN_OR_RETURN(TrainerRegions::Place place,
                     regions_.PlaceOf(operation->target(), extent.target_bytes, "target"));
    operation->set_target(place.location);
    launched->target = std::move(place.region);
    launched->size_bytes = extent.target_bytes;
    launched->place = launched->target->data() + place.location.offset;
  }
  return absl::OkStatus();
}

// The communicator may take fewer operations at once than a trainer launches: then some of those in
// flight end before. Where none is, nothing would change.
bool ServedCommunicator::HasNoRoom(const absl::Status& launched) const {
  return absl::IsResourceExhausted(launched) && !in_flight_.empty();
}

bool ServedCommunicator::Launch(const LinkRecord& record) {
  Launched launched;
  launched.ticket = record.ticket;
  Operation operation = record.operation;
  HostStream stream;
  if (line_.replays && launches_.load() < line_.log->size()) {
    Replay(record, launches_.fetch_add(1));
    return true;
  }
  const absl::Status translated = Translate(&operation, &launched);
  const absl::StatusOr<Completion> completion =
      translated.ok() ? communicator_->Launch(operation, stream) : translated;
  if (translated.ok() && HasNoRoom(completion.status())) return false;
  launches_.fetch_add(1);
  if (!completion.ok()) {
    // The trainer goes on with nothing else then, and the other ranks must not wait for it.
    if (absl::IsUnavailable(translated)) communicator_->Abort(translated);
    TellDone(record.ticket, completion.status());
    return true;
  }
  launched.completion = *completion;
  if (line_.log != nullptr && !line_.is_set_up->load()) {
    launched.logged = line_.log->Add(record.operation);
  }
  in_flight_.push_back(std::move(launched));
  return true;
}

absl::StatusOr<Completion> ServedCommunicator::LaunchOver(const LinkRecord& record,
                                                          Launched* launched) const {
  const uint64_t piece_bytes = PieceBytesOf(line_);
  if (piece_bytes == 0) {
    return absl::InvalidArgumentError(
        "the trainer has launched in pieces, which the daemon has not offered; start the trainer "
        "and the daemon from one installation");
  }
  const RegionId ring = record.operation.source_region;
  launched->trainers_target = ring;
  ASSIGN_OR_RETURN(
      TrainerRegions::Place place,
      regions_.PlaceOf(record.operation.source(), piece_ring::SizeOf(piece_bytes), "ring"));
  launched->target = std::move(place.region);
  ASSIGN_OR_RETURN(launched->pieces, PieceRing::Over(*launched->target, piece_bytes, [this] {
                     LinkRecord news;
                     news.kind = LinkRecord::kReduced;
                     // A trainer whose socket is full reads there anyway.
                     (void)socket_->Send(EncodeRecord(news), {}, absl::InfinitePast());
                   }));
  return communicator_->LaunchInPieces(record.operation, *launched->pieces);
}

bool ServedCommunicator::LaunchInPieces(const LinkRecord& record) {
  Launched launched;
  launched.ticket = record.ticket;
  const absl::StatusOr<Completion> completion = LaunchOver(record, &launched);
  if (HasNoRoom(completion.status())) return false;
  launches_.fetch_add(1);
  if (!completion.ok()) {
    TellDone(record.ticket, completion.status());
    return true;
  }
  launched.completion = *completion;
  in_flight_.push_back(std::move(launched));
  return true;
}

bool ServedCommunicator::AwaitsTrainer() const {
  return in_flight_.size() == 1 && in_flight_.front().pieces != nullptr &&
         in_flight_.front().pieces->waits();
}

// The peers have been through it with the trainer before.
void ServedCommunicator::Replay(const LinkRecord& record, size_t number) {
  Launched launched;
  Operation operation = record.operation;
  absl::Status status = Translate(&operation, &launched);
  // What it launches in its training is another operation, be it of the same kind.
  const std::vector<std::byte>* const target =
      has_kept_.load() ? nullptr : line_.log->Find(number, record.operation, launched.size_bytes);
  if (status.ok() && target == nullptr) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "a trainer that comes in another one's place launches ", Describe(record.operation),
        has_kept_.load() ? " after its set-up" : "", " where that one had launched ",
        line_.log->Describe(number), has_kept_.load() ? " in its own" : "",
        "; start the same script, or the trainers of all ranks"));
    communicator_->Abort(status);
  }
  if (status.ok()) std::copy(target->begin(), target->end(), launched.place);
  TellDone(record.ticket, status);
}

std::vector<Rank> ServedCommunicator::MissingAfter(uint64_t launches) {
  const absl::Time patience = Clock::Real().Now() + kMissingPatience;
  if (!asking_.Take(patience)) return {};
  const TurnHolder asking(&asking_);
  // Those that are held come after what the ranks are missing in.
  const auto come = [&] { return launches_.load() >= launches || is_held_.load(); };
  while (!come() && Clock::Real().Now() < patience) poll(nullptr, 0, 1);
  missing_.TakeAll();  // of a question that nobody waited for any more
  is_asked_.store(true);
  while (Clock::Real().Now() < patience) {
    communicator_->Wake();  // who drives may be parked
    TellMissingMyself();
    if (std::optional<std::vector<Rank>> missing = missing_.Take()) return *std::move(missing);
    poll(nullptr, 0, 1);
  }
  return {};
}

void ServedCommunicator::TellMissing() {
  if (!is_asked_.load(std::memory_order_relaxed)) return;
  is_asked_.store(false);
  missing_.Push(communicator_->Missing());
}

// Where nobody drives. No record is left: the thread that reads has queued it before it found the
// turn taken here, and this looks at the queue after it has given the turn back.
void ServedCommunicator::TellMissingMyself() {
  if (!driving_.Take(absl::InfinitePast())) return;
  TellMissing();
  driving_.GiveBack();
  if (!queue_.is_empty()) drive_thread_.Add([this] { Drive(); });
}

void ServedCommunicator::FindSender(const LinkRecord& question) {
  if (line_.log != nullptr) line_.log->Spoil();
  communicator_->Progress();
  const absl::StatusOr<std::optional<Rank>> found =
      communicator_->FindSender(question.operation.tag);
  LinkRecord answer;
  answer.kind = LinkRecord::kFound;
  answer.operation.tag = question.operation.tag;
  if (found.ok() && found->has_value()) answer.operation.peer = (*found)->value();
  Tell(answer, found.status());
}

// False: there is no room for it yet.
bool ServedCommunicator::Run(const LinkRecord& record) {
  if (record.kind == LinkRecord::kLaunch) return Launch(record);
  if (record.kind == LinkRecord::kLaunchInPieces) return LaunchInPieces(record);
  if (record.kind == LinkRecord::kFindSender) FindSender(record);
  if (record.kind == LinkRecord::kDeregister) {
    regions_.Erase(RegionId(static_cast<uint32_t>(record.ticket)));
  }
  return true;
}

// In the order in which they came. Whether any has been run.
bool ServedCommunicator::RunQueue() {
  if (held_.empty()) held_ = queue_.TakeAll();
  const size_t before = held_.size();
  while (!held_.empty() && Run(held_.front())) held_.pop_front();
  is_held_.store(!held_.empty());
  return held_.size() < before;
}

bool ServedCommunicator::TellEnds() {
  bool has_ended = false;
  for (size_t i = 0; i < in_flight_.size();) {
    const OperationRunner::State state = communicator_->Query(in_flight_[i].completion);
    if (!state.done) {
      ++i;
      continue;
    }
    TellEnd(in_flight_[i], state.status);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    has_ended = true;
  }
  in_flight_count_.store(in_flight_.size(), std::memory_order_relaxed);
  has_pieces_.store(std::any_of(in_flight_.begin(), in_flight_.end(), [](const Launched& launched) {
    return launched.pieces != nullptr;
  }));
  return has_ended;
}

// What was written after the memory was taken back from a peer has not reached the trainer, and the
// trainer itself must take it back, too.
void ServedCommunicator::TellEnd(const Launched& ended, absl::Status status) {
  if (ended.logged.has_value() && status.ok()) {
    line_.log->Ended(*ended.logged, ended.place, ended.size_bytes);
  }
  LinkRecord answer;
  answer.kind = LinkRecord::kDone;
  answer.ticket = ended.ticket;
  if (ended.target != nullptr && IsUnshared(ended.target->id())) {
    answer.operation.target_region = ended.trainers_target;
    if (status.ok()) {
      status = absl::UnavailableError(
          "its shared memory was taken back meanwhile from a rank that had stopped while it wrote "
          "there");
      communicator_->Abort(status);
    }
  }
  Tell(answer, status);
}

bool ServedCommunicator::Step() {
  bool has_moved = RunQueue();
  has_moved |= communicator_->Progress();
  TellMissing();
  has_moved |= TellEnds();
  return has_moved;
}

// Most operations end before it is time to park, so that what the trainer waits for passes through
// one thread of this process and wakes no other. No record is left: it was queued before this asks
// for the turn, and the drive thread looks at the queue again after it has given the turn back.
absl::Status ServedCommunicator::DriveSome() {
  if (!driving_.Take(absl::InfinitePast())) {
    communicator_->Wake();  // the drive thread may be parked
    return absl::OkStatus();
  }
  absl::Status ended;
  Backoff backoff({communicator_->spins(), kYields});
  int parks = 0;
  while (ended.ok()) {
    if (Step()) {
      backoff.Reset();
      continue;
    }
    if (in_flight_.empty()) break;
    // Launches that follow run beside the first.
    absl::StatusOr<LinkSocket::Message> message = socket_->Receive(absl::InfinitePast());
    if (message.ok()) {
      ended = Take(*std::move(message));
      backoff.Reset();
      continue;
    }
    if (!absl::IsDeadlineExceeded(message.status())) ended = message.status();
    const Backoff::Next next = backoff.OnIdle();
    if (next != Backoff::Next::kLook && AwaitsTrainer()) break;  // it sends a record
    if (next == Backoff::Next::kPark) {
      // A peer's piece comes soon, and the trainer has nothing to say before.
      if (!has_pieces_ || parks++ == kPieceParks) break;
      communicator_->Park(Clock::Real().Now() + kPiecePark);
    }
    if (next == Backoff::Next::kYield) sched_yield();
  }
  const bool is_left = !in_flight_.empty() && !AwaitsTrainer();
  driving_.GiveBack();
  // Where the drive thread refuses, a call waits there that it has not begun to make.
  if (is_left || !queue_.is_empty()) drive_thread_.Add([this] { Drive(); });
  return ended;
}

void ServedCommunicator::Drive() {
  do {
    if (!driving_.Take(absl::InfiniteFuture())) return;
    const TurnHolder driving(&driving_);
    DriveAll();
  } while (!queue_.is_empty());
}

void ServedCommunicator::DriveAll() {
  Backoff backoff({communicator_->spins(), kYields});
  while (true) {
    if (Step()) {
      backoff.Reset();
      continue;
    }
    if (in_flight_.empty()) return;
    // What a trainer leaves behind in flight ends now, and not when its peers come.
    if (is_closing_.load())
      communicator_->Abort(absl::AbortedError("the trainer closed it meanwhile"));
    const Backoff::Next next = backoff.OnIdle();
    if (next == Backoff::Next::kYield) sched_yield();
    if (next != Backoff::Next::kLook && reader_looks_.load() && AwaitsTrainer()) return;
    if (next == Backoff::Next::kPark) {
      communicator_->Park(Clock::Real().Now() + waits::kLongestParkOnWire);
    }
  }
}

}  // namespace pelton
