#include "backend/link/link_communicator.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/transport/operation_check.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// A daemon reads all the time; one that takes no message for so long is stuck.
constexpr absl::Duration kSendPatience = absl::Seconds(1);
// The daemon answers from what it knows, after half a second at most.
constexpr absl::Duration kMissingPatience = absl::Milliseconds(1500);

absl::Time SendDeadline() { return Clock::Real().Now() + kSendPatience; }

bool ReadsTarget(const Operation& operation, Rank rank) {
  return RootReadsTarget(operation.kind) && operation.peer == rank.value();
}

}  // namespace

LinkCommunicator::LinkCommunicator(Options options, std::unique_ptr<LinkSocket> socket)
    : options_(std::move(options)),
      socket_(std::move(socket)),
      wakes_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      pool_([this](const Region& region) { return Register(region); },
            [this](RegionId region) { Deregister(region); }) {}

LinkCommunicator::~LinkCommunicator() {
  options_.on_close(this);
  TakeAnswers();  // what has ended meanwhile is the caller's already
  for (StagedOperation& staged : in_flight_) TakeBack(staged);
  SendAlone(LinkRecord::kClose);
  socket_->Shutdown();
}

// A connection that is gone is the reader's to notice.
void LinkCommunicator::SendAlone(LinkRecord::Kind kind, uint64_t ticket) {
  LinkRecord record;
  record.kind = kind;
  record.ticket = ticket;
  (void)socket_->Send(EncodeRecord(record), {}, SendDeadline());
}

absl::Status LinkCommunicator::Register(const Region& region) {
  // Memory that cannot be mapped elsewhere, a device's for instance, is staged.
  if (region.descriptor() < 0) return absl::OkStatus();
  LinkRecord record;
  record.kind = LinkRecord::kRegister;
  record.ticket = region.id().value();
  const int descriptor = region.descriptor();
  RETURN_IF_ERROR(options_.client->Explain(
      socket_->Send(EncodeRecord(record), {&descriptor, 1}, SendDeadline())));
  registered_.AddNew(region.id());
  return absl::OkStatus();
}

void LinkCommunicator::Deregister(RegionId region) {
  if (!registered_.Remove(region)) return;
  SendAlone(LinkRecord::kDeregister, region.value());
}

bool LinkCommunicator::GoesInPieces(const Operation& operation,
                                    const OperationPlaces& places) const {
  return operation.kind == OperationKind::kAllReduce && options_.piece_bytes > 0 &&
         places.extent.source_bytes > options_.piece_bytes && MayGoInPieces(places);
}

// Beside what the daemon and its peers do with other pieces. After an abort the tensor is its
// caller's.
bool LinkCommunicator::AdvancePieces() {
  if (in_pieces_.empty() || aborted_.is_given()) return false;
  std::erase_if(in_pieces_, [this](size_t place) { return in_flight_[place].pieces == nullptr; });
  bool has_moved = false;
  for (const size_t place : in_pieces_) {
    PieceFeeder& pieces = *in_flight_[place].pieces;
    has_moved |= pieces.Advance();
    if (pieces.OwesNews()) SendAlone(LinkRecord::kFilled);
  }
  return has_moved;
}

bool LinkCommunicator::PiecesMaySleep() {
  if (aborted_.is_given()) return true;
  bool may_sleep = true;
  for (const size_t place : in_pieces_) {
    if (in_flight_[place].pieces == nullptr) continue;
    may_sleep = in_flight_[place].pieces->MaySleep() && may_sleep;
  }
  return may_sleep;
}

absl::StatusOr<LinkRecord> LinkCommunicator::Prepare(const Operation& operation,
                                                     StagedOperation& staged) {
  RETURN_IF_ERROR(CheckOperation(operation, rank(), world_size()));
  ASSIGN_OR_RETURN(const OperationMemory memory, ResolveOperation(operation, rank(), world_size()));
  OperationPlaces places;
  places.source = memory.source;
  places.target = memory.target;
  places.extent = ExtentOf(operation, rank(), world_size());
  // Unshared memory is this process's alone: the daemon has a mapping of what it was.
  auto is_direct = [this](RegionId region) {
    return registered_.Contains(region) && !IsUnshared(region);
  };
  places.source_is_direct = is_direct(operation.source_region);
  places.target_is_direct = is_direct(operation.target_region);
  places.reads_target = ReadsTarget(operation, rank());
  LinkRecord record;
  record.kind = LinkRecord::kLaunch;
  record.operation = operation;
  if (GoesInPieces(operation, places)) {
    record.kind = LinkRecord::kLaunchInPieces;
    RETURN_IF_ERROR(StageInPieces(places, options_.piece_bytes, pool_, &record.operation, &staged));
    return record;
  }
  RETURN_IF_ERROR(CopyIntoStaging(places, pool_, &record.operation, &staged));
  return record;
}

absl::StatusOr<Completion> LinkCommunicator::Launch(const Operation& operation, Stream& stream) {
  if (stream.device() != DeviceKind::kHost) {
    return absl::InvalidArgumentError(
        absl::StrCat("stream: it is one of ", NameOf(stream.device()),
                     "; a pelton-daemon works on the host's memory; open a communicator for the "
                     "device, which stays in the trainer"));
  }
  RETURN_IF_ERROR(aborted_.Get());
  if (!table_.has_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank().value(), ": ", table_.in_flight(),
                     " operations are in flight already; await one before the next launch"));
  }
  StagedOperation staged;
  const absl::StatusOr<LinkRecord> prepared = Prepare(operation, staged);
  if (absl::IsResourceExhausted(prepared.status()) && table_.in_flight() == 0) {
    // No end of an operation will give any memory back, and the peers wait for this one.
    Abort(Annotate(prepared.status(),
                   absl::StrCat("rank ", rank().value(), ": ", NameOf(operation.kind))));
    return aborted_.Get();
  }
  RETURN_IF_ERROR(prepared.status());
  LinkRecord record = *prepared;
  const CompletionTable::Entry entry = table_.Begin();
  record.ticket = entry.completion.ticket;
  if (operation.kind == OperationKind::kRecv) Overtake(operation);
  std::erase(in_pieces_, entry.place);  // of an earlier one
  if (staged.pieces != nullptr) in_pieces_.push_back(entry.place);
  in_flight_[entry.place] = std::move(staged);
  launches_.fetch_add(1);
  const absl::Status sent = socket_->Send(EncodeRecord(record), {}, SendDeadline());
  if (!sent.ok()) OnLost(sent);
  return entry.completion;
}

OperationRunner::State LinkCommunicator::Query(Completion completion) {
  const size_t place = table_.PlaceOf(completion.ticket);
  if (place == CompletionTable::kNoPlace || !aborted_.is_given() || in_flight_[place].is_direct) {
    return table_.Query(completion);
  }
  TakeBack(in_flight_[place]);
  in_flight_[place] = StagedOperation();
  table_.End(completion.ticket, aborted_.Get());
  return table_.Query(completion);
}

// Others may still work on the operation's memory: copies, which they keep mapped, are not used
// again, and what a caller's memory holds changes no more.
void LinkCommunicator::TakeBack(StagedOperation& staged) {
  for (const std::unique_ptr<Region>& region : staged.regions) Deregister(region->id());
  staged.regions.clear();
  if (staged.direct_target == kPrivateRegion) return;
  const absl::Status taken = Unshare(staged.direct_target);
  if (taken.ok() || absl::IsNotFound(taken)) return;
  Log(LogLevel::kError, absl::StrCat("rank ", rank().value(), ": a tensor may yet change, because ",
                                     "its memory could not be taken back: ", taken.message()));
}

void LinkCommunicator::OnDone(const ParsedRecord& answer) {
  const size_t place = table_.PlaceOf(answer.record.ticket);
  if (place == CompletionTable::kNoPlace) return;  // it was ended by an abort, or with the daemon
  absl::Status status = answer.status();
  if (answer.record.operation.target_region != kPrivateRegion) {
    TakeBack(in_flight_[place]);
    if (status.ok()) status = absl::InternalError("it ended well, and a peer may yet write to it");
  }
  table_.End(answer.record.ticket, CopyOutOfStaging(in_flight_[place], pool_, status));
  // Ranks that disagree go on; any other failure of an operation is the communicator's end.
  const bool goes_on = absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status);
  if (!status.ok() && !goes_on) aborted_.Give(status);
}

void LinkCommunicator::OnLost(const absl::Status& reason) {
  const absl::Status why = options_.client->Explain(reason);
  aborted_.Give(why);
  // The peers' daemons may be in the middle of it.
  for (StagedOperation& staged : in_flight_) {
    TakeBack(staged);
    staged = StagedOperation();
  }
  table_.EndAll(aborted_.Get());
}

void LinkCommunicator::Handle(const ParsedRecord& answer) {
  switch (answer.record.kind) {
    case LinkRecord::kDone:
      return OnDone(answer);
    case LinkRecord::kFound:
      return OnFound(answer);
    case LinkRecord::kAborted:
      aborted_.Give(answer.status());
      return;
    default:
      return;
  }
}

bool LinkCommunicator::Progress() {
  const bool has_moved = TakeAnswers();
  return AdvancePieces() || has_moved;
}

bool LinkCommunicator::TakeAnswers() {
  bool has_moved = false;
  while (true) {
    const absl::StatusOr<LinkSocket::Message> message = socket_->Receive(absl::InfinitePast());
    if (absl::IsDeadlineExceeded(message.status())) return has_moved;
    const absl::StatusOr<ParsedRecord> answer =
        message.ok() ? DecodeRecord(message->payload) : message.status();
    if (!answer.ok()) {
      const bool is_news = table_.in_flight() > 0 || !aborted_.is_given();
      OnLost(answer.status());
      return has_moved || is_news;
    }
    Handle(*answer);
    has_moved = true;
  }
}

absl::StatusOr<std::optional<Rank>> LinkCommunicator::FindSender(int32_t tag) {
  RETURN_IF_ERROR(aborted_.Get());
  const auto [place, is_new] = questions_.try_emplace(tag);
  if (!is_new) {
    if (!place->second.answer.has_value()) return std::optional<Rank>();
    const ParsedRecord found = *place->second.answer;
    questions_.erase(place);
    RETURN_IF_ERROR(found.status());
    return std::optional<Rank>(Rank(found.record.operation.peer));
  }
  LinkRecord question;
  question.kind = LinkRecord::kFindSender;
  question.operation.tag = tag;
  RETURN_IF_ERROR(
      options_.client->Explain(socket_->Send(EncodeRecord(question), {}, SendDeadline())));
  return std::optional<Rank>();
}

// An answer that names nobody, or somebody whose message may be gone, is no answer: the next call
// asks again.
void LinkCommunicator::OnFound(const ParsedRecord& answer) {
  const auto place = questions_.find(answer.record.operation.tag);
  if (place == questions_.end()) return;
  const int32_t peer = answer.record.operation.peer;
  const bool names_one = peer >= 0 && peer < world_size().value() && !place->second.is_overtaken;
  if (names_one || !answer.status().ok()) {
    place->second.answer = answer;
  } else {
    questions_.erase(place);
  }
}

void LinkCommunicator::Overtake(const Operation& receive) {
  const auto place = questions_.find(receive.tag);
  if (place == questions_.end()) return;
  if (!place->second.answer.has_value()) {
    place->second.is_overtaken = true;
  } else if (place->second.answer->record.operation.peer == receive.peer) {
    questions_.erase(place);
  }
}

// The descriptors are looked at before the time, so that a wake-up from before is not lost.
void LinkCommunicator::Park(absl::Time until) {
  if (!PiecesMaySleep()) return;
  pollfd entries[2] = {{socket_->descriptor(), POLLIN, 0}, {wakes_.get(), POLLIN, 0}};
  const absl::Duration left =
      std::clamp(until - Clock::Real().Now(), absl::ZeroDuration(), absl::Seconds(1));
  (void)poll(entries, 2,
             static_cast<int>(absl::ToInt64Milliseconds(left + absl::Microseconds(999))));
  uint64_t count = 0;
  if (entries[1].revents != 0 && read(wakes_.get(), &count, sizeof count) < 0) return;
}

void LinkCommunicator::Wake() {
  const uint64_t one = 1;
  if (write(wakes_.get(), &one, sizeof one) < 0) return;  // full: it is awake anyway
}

void LinkCommunicator::Abort(const absl::Status& reason) {
  const absl::Duration silent_for = absl::Nanoseconds(silent_for_ns_.load());
  const bool is_silent = silent_for > absl::ZeroDuration() && absl::IsDeadlineExceeded(reason);
  const absl::Status why = is_silent ? Annotate(options_.client->Silence(silent_for),
                                                absl::StrCat("rank ", rank().value()))
                                     : reason;
  if (!aborted_.Give(why)) return;
  if (is_silent) {
    // Its word that it no longer writes would not come: as of one that is gone, the end of the
    // connection ends what is in flight, and the daemon's part as soon as it goes on.
    socket_->Shutdown();
    return Wake();
  }
  LinkRecord record;
  record.kind = LinkRecord::kAbort;
  // Without waiting: a daemon that does not read learns it from the connection's end.
  if (!socket_->Send(EncodeRecord(record, reason), {}, Clock::Real().Now()).ok()) {
    socket_->Shutdown();
  }
  Wake();
}

std::vector<Rank> LinkCommunicator::Missing() const {
  const absl::Time began = Clock::Real().Now();
  proto::LinkCall call;
  call.mutable_missing()->set_communicator(options_.number);
  call.mutable_missing()->set_launches(launches_.load());
  const absl::StatusOr<proto::LinkReply> reply =
      options_.client->Call(std::move(call), began + kMissingPatience, absl::ZeroDuration());
  std::vector<Rank> missing;
  const bool is_silent = absl::IsDeadlineExceeded(reply.status());
  silent_for_ns_.store(is_silent ? absl::ToInt64Nanoseconds(Clock::Real().Now() - began) : 0);
  if (is_silent) missing.push_back(rank());
  if (!reply.ok()) return missing;
  for (const int32_t rank : reply->missing()) missing.emplace_back(rank);
  return missing;
}

namespace {

// Threads: as Transport. Owns: its share of the link, and the list of what is open.
class LinkTransport final : public Transport {
 public:
  explicit LinkTransport(std::shared_ptr<LinkClient> client) : client_(std::move(client)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override;
  void Abort(const absl::Status& reason) override {
    open_.ForEach([&](LinkCommunicator* communicator) { communicator->Abort(reason); });
  }

 private:
  const std::shared_ptr<LinkClient> client_;  // shared: the control uses the same link
  SharedList<LinkCommunicator*> open_;
};

absl::StatusOr<std::unique_ptr<Communicator>> LinkTransport::Open(CommunicatorId id,
                                                                  const Group& group,
                                                                  absl::Time deadline) {
  const Rank world_rank(client_->rank());
  const std::optional<Rank> rank = group.RankOf(world_rank);
  if (!rank.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("group: rank ", world_rank.value(),
                     " is not in it; only members of a group open its communicator"));
  }
  proto::LinkHello hello;
  hello.set_purpose(proto::LinkHello::COMMUNICATOR);
  for (const Rank member : group.members) hello.add_members(member.value());
  hello.set_generation(group.generation.value());
  proto::LinkWelcome welcome;
  ASSIGN_OR_RETURN(std::unique_ptr<LinkSocket> socket, client_->Connect(hello, &welcome, deadline));
  LinkCommunicator::Options options;
  options.rank = *rank;
  options.world_size = group.size();
  options.id = id;
  options.number = welcome.communicator();
  options.piece_bytes = welcome.piece_bytes();
  options.client = client_;
  options.on_close = [this](LinkCommunicator* closing) { open_.Remove(closing); };
  auto opened = std::make_unique<LinkCommunicator>(std::move(options), std::move(socket));
  open_.Add(opened.get());
  return opened;
}

}  // namespace

std::unique_ptr<Transport> MakeLinkTransport(std::shared_ptr<LinkClient> client) {
  return std::make_unique<LinkTransport>(std::move(client));
}

}  // namespace pelton
