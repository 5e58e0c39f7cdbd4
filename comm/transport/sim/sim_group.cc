#include "comm/transport/sim/sim_group.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "comm/transport/sim/outcome.h"
#include "core/base/check.h"
#include "core/base/sharing.h"
#include "core/base/status.h"

namespace pelton {

SimGroup::SimGroup(CommunicatorId id, Group group, KindSet native_kinds, Network& network,
                   EventQueue& events)
    : id_(id),
      group_(std::move(group)),
      native_kinds_(native_kinds),
      network_(network),
      events_(events) {
  members_.resize(group_.members.size());
}

SimGroup::Flight* SimGroup::Find(Place place) {
  Member& member = At(place.rank);
  const size_t index = member.completions.PlaceOf(place.ticket);
  return index == CompletionTable::kNoPlace ? nullptr : &member.flights[index];
}

SimGroup::Flight& SimGroup::FlightAt(Place place) {
  Flight* const flight = Find(place);
  PELTON_CHECK(flight != nullptr) << "ticket " << place.ticket << " of " << place.rank;
  return *flight;
}

const SimGroup::Flight* SimGroup::OldestInFlight(const Member& member) const {
  const size_t index = member.completions.PlaceOf(member.completions.oldest());
  return index == CompletionTable::kNoPlace ? nullptr : &member.flights[index];
}

absl::StatusOr<Completion> SimGroup::Launch(Rank rank, const Operation& operation, absl::Time now,
                                            absl::Time visible_at) {
  Member& member = At(rank);
  RETURN_IF_ERROR(member.ended);
  RETURN_IF_ERROR(Check(rank, operation));
  ASSIGN_OR_RETURN(const OperationMemory memory, ResolveOperation(operation, rank, group_.size()));
  if (!member.completions.has_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank.value(), ": ", member.completions.in_flight(),
                     " operations of communicator ", id_.value(), " are in flight"));
  }
  const Place place = Enqueue(rank, operation, memory);
  // A rank's operations become visible in launch order, whatever happens to its stalls.
  visible_at = member.last_visible_at = std::max(visible_at, member.last_visible_at);
  if (visible_at <= now) {
    Post(place, now);
  } else {
    events_.Add(visible_at, {SimEvent::Kind::kPost, this, rank, place.ticket, {}});
  }
  return Completion{place.ticket};
}

absl::Status SimGroup::Check(Rank rank, const Operation& operation) const {
  RETURN_IF_ERROR(CheckOperation(operation, rank, group_.size()));
  if (IsPointToPoint(operation.kind) || native_kinds_.Contains(operation.kind)) {
    return absl::OkStatus();
  }
  return CheckHasProgram(operation, group_.size());
}

SimGroup::Place SimGroup::Enqueue(Rank rank, Operation operation, OperationMemory memory) {
  Member& member = At(rank);
  const CompletionTable::Entry entry = member.completions.Begin();
  const Place place{rank, entry.completion.ticket};
  operation.communicator = id_;
  operation.generation = group_.generation;
  if (IsPointToPoint(operation.kind)) {
    const bool is_recv = operation.kind == OperationKind::kRecv;
    operation.sequence = ++member.launched_pairs[is_recv][{operation.peer, operation.tag}];
  } else {
    operation.sequence = ++member.launched_collectives;
    member.collectives.push_back(place.ticket);
  }
  if (member.flights.size() <= entry.place) member.flights.resize(entry.place + 1);
  Flight& flight = member.flights[entry.place];
  flight = Flight{};
  flight.operation = operation;
  flight.memory = memory;
  flight.in_flight = true;
  ++in_flight_;
  return place;
}

void SimGroup::Post(Place place, absl::Time now) {
  Flight* const posted = Find(place);
  if (posted == nullptr) return;  // ended before it became visible
  Flight& flight = *posted;
  flight.visible = true;
  Member& member = At(place.rank);
  if (IsPointToPoint(flight.operation.kind)) {
    PostPair(place, now);
  } else {
    ++member.visible_collectives;
    if (member.collectives.front() == place.ticket) OnHeadReady(now);
  }
  if (closed_count_ > 0) FailIfPeerClosed(place.rank);
}

void SimGroup::PostPair(Place place, absl::Time now) {
  const Operation& operation = FlightAt(place).operation;
  const Rank peer(operation.peer);
  const bool is_send = operation.kind == OperationKind::kSend;
  Waiting& partners = is_send ? At(peer).recvs : At(peer).sends;
  const auto waiting = partners.find({place.rank.value(), operation.tag});
  if (waiting == partners.end()) {
    Waiting& mine = is_send ? At(place.rank).sends : At(place.rank).recvs;
    mine[{operation.peer, operation.tag}].push_back(place.ticket);
    return;
  }
  const Place partner{peer, waiting->second.front()};
  waiting->second.pop_front();
  if (waiting->second.empty()) partners.erase(waiting);  // ranks may have thousands of peers
  is_send ? StartPair(place, partner, now) : StartPair(partner, place, now);
}

void SimGroup::OnHeadReady(absl::Time now) {
  if (++ready_heads_ == members_.size() && !ended_) StartCollective(now);
}

absl::Status SimGroup::DifferenceOfHeads() {
  const Operation& first = FlightAt({Rank(0), members_[0].collectives.front()}).operation;
  for (int32_t r = 1; r < group_.size().value(); ++r) {
    const Operation& other = FlightAt({Rank(r), At(Rank(r)).collectives.front()}).operation;
    const std::string difference = DifferenceOf(first, Rank(0), other, Rank(r));
    if (!difference.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(first), ": ", difference));
    }
  }
  return absl::OkStatus();
}

void SimGroup::StartCollective(absl::Time now) {
  ready_heads_ = 0;
  const absl::Status agreement = DifferenceOfHeads();
  std::vector<Part> parts;
  for (int32_t r = 0; r < group_.size().value(); ++r) {
    Flight& flight = FlightAt({Rank(r), At(Rank(r)).collectives.front()});
    flight.started = true;
    const bool reads_target = RootReadsTarget(flight.operation.kind);
    parts.push_back(
        {&flight.operation, reads_target ? flight.memory.target : flight.memory.source});
  }
  std::vector<absl::Time> times(members_.size(), now);
  std::shared_ptr<const Outcome> outcome;
  if (agreement.ok() && native_kinds_.Contains(parts[0].operation->kind)) {
    outcome = std::make_shared<const Outcome>(RunCollective(parts));
    times = CompletionTimes(*parts[0].operation, group_.members, now, network_);
  } else if (agreement.ok()) {
    ProgramResult result = RunAsPrograms(parts, group_.members, now, network_);
    outcome = std::make_shared<const Outcome>(std::move(result.outcome));
    times = std::move(result.times);
  }
  for (int32_t r = 0; r < group_.size().value(); ++r) {
    const Place place{Rank(r), At(Rank(r)).collectives.front()};
    FlightAt(place).outcome = outcome;
    events_.Add(times[static_cast<size_t>(r)],
                {SimEvent::Kind::kCompletion, this, place.rank, place.ticket, agreement});
  }
}

void SimGroup::StartPair(Place send, Place recv, absl::Time now) {
  Flight& sender = FlightAt(send);
  Flight& receiver = FlightAt(recv);
  sender.started = receiver.started = true;
  const std::string difference =
      DifferenceOfPair(sender.operation, send.rank, receiver.operation, recv.rank);
  absl::Status agreement;
  Network::Times times{now, now};
  if (!difference.empty()) {
    agreement =
        absl::InvalidArgumentError(absl::StrCat(Describe(sender.operation), ": ", difference));
  } else {
    const uint64_t bytes = sender.operation.count * SizeOf(sender.operation.dtype);
    auto outcome = std::make_shared<Outcome>();
    outcome->bytes.assign(sender.memory.source, sender.memory.source + bytes);
    receiver.outcome = std::move(outcome);
    times = network_.Transfer({WorldRank(send.rank), WorldRank(recv.rank)}, bytes, now);
  }
  events_.Add(times.left, {SimEvent::Kind::kCompletion, this, send.rank, send.ticket, agreement});
  events_.Add(times.arrived,
              {SimEvent::Kind::kCompletion, this, recv.rank, recv.ticket, agreement});
}

void SimGroup::Complete(Place place, const absl::Status& status, absl::Time now) {
  Flight* const completed = Find(place);
  if (completed == nullptr) return;  // ended in between; its memory is the user's again
  Flight& flight = *completed;
  const uint64_t bytes = ExtentOf(flight.operation, place.rank, group_.size()).target_bytes;
  if (status.ok() && bytes > 0) {
    const uint64_t rank = static_cast<uint64_t>(place.rank.value());
    std::memcpy(flight.memory.target,
                flight.outcome->bytes.data() + rank * flight.outcome->stride_bytes, bytes);
  }
  Member& member = At(place.rank);
  Finish(flight);
  member.completions.End(place.ticket, status);
  ++member.moves;
  waker(place.rank).Kick();
  if (IsPointToPoint(flight.operation.kind)) return;
  member.collectives.pop_front();
  if (member.collectives.empty()) return;
  if (FlightAt({place.rank, member.collectives.front()}).visible) OnHeadReady(now);
}

void SimGroup::Finish(Flight& flight) {
  flight.outcome.reset();
  flight.in_flight = false;
  --in_flight_;
}

OperationRunner::State SimGroup::Query(Rank rank, Completion completion) const {
  return At(rank).completions.Query(completion);
}

std::vector<Rank> SimGroup::Missing(Rank rank) const {
  const Flight* oldest = OldestInFlight(At(rank));
  if (oldest == nullptr || oldest->started) return {};
  if (IsPointToPoint(oldest->operation.kind)) return {Rank(oldest->operation.peer)};
  std::vector<Rank> missing;
  for (int32_t r = 0; r < group_.size().value(); ++r) {
    const bool arrived = At(Rank(r)).visible_collectives >= oldest->operation.sequence;
    if (!arrived && r != rank.value()) missing.emplace_back(r);
  }
  return missing;
}

absl::StatusOr<std::optional<Rank>> SimGroup::FindSender(Rank rank, int32_t tag) {
  Member& member = At(rank);
  RETURN_IF_ERROR(member.ended);
  const int32_t size = group_.size().value();
  for (int32_t i = 0; i < size; ++i) {
    const Rank peer((member.next_sender + i) % size);
    const auto sends = At(peer).sends.find({rank.value(), tag});
    if (sends == At(peer).sends.end() || sends->second.empty()) continue;
    member.next_sender = (peer.value() + 1) % size;
    return peer;
  }
  if (closed_count_ + 1 >= members_.size()) return absl::NotFoundError("all other ranks have left");
  return std::nullopt;
}

void SimGroup::Abort(Rank rank, const absl::Status& reason, absl::Time now) {
  if (!At(rank).ended.ok()) return;
  const absl::Status mine = AsEnd(reason);
  const absl::Status notice(mine.code(),
                            absl::StrCat("rank ", rank.value(), " aborted: ", mine.message()));
  End(rank, mine, notice, now);
}

void SimGroup::End(Rank rank, const absl::Status& reason, const absl::Status& notice,
                   absl::Time now) {
  if (!At(rank).ended.ok()) return;
  FailAll(rank, reason);
  for (int32_t r = 0; r < group_.size().value(); ++r) {
    if (!At(Rank(r)).ended.ok()) continue;
    const absl::Time at = network_.NoticeTime({WorldRank(rank), WorldRank(Rank(r))}, now);
    events_.Add(at, {SimEvent::Kind::kNotice, this, Rank(r), 0, notice});
  }
}

void SimGroup::FailAll(Rank rank, const absl::Status& reason) {
  Member& member = At(rank);
  if (!member.ended.ok()) return;
  member.ended = reason;
  ended_ = true;
  for (Flight& flight : member.flights) {
    if (!flight.in_flight) continue;
    Finish(flight);
    ++member.moves;
  }
  member.completions.EndAll(reason);
  member.collectives.clear();
  member.sends.clear();
  member.recvs.clear();
  waker(rank).Kick();
}

void SimGroup::Close(Rank rank, absl::Time now) {
  Member& member = At(rank);
  PELTON_CHECK(!member.closed) << rank;
  const absl::Status reason = absl::CancelledError("the communicator is closed");
  const std::string text = absl::StrCat("rank ", rank.value(), " closed the communicator");
  if (OldestInFlight(member) != nullptr) {
    End(rank, reason, absl::UnavailableError(text + " with operations in flight"), now);
  } else {
    FailAll(rank, reason);
  }
  member.closed = true;
  ++closed_count_;
  if (in_flight_ == 0) return;  // as a rule: else closing all ranks would cost n * n steps
  for (int32_t r = 0; r < group_.size().value(); ++r) FailIfPeerClosed(Rank(r));
}

void SimGroup::FailIfPeerClosed(Rank rank) {
  Member& member = At(rank);
  if (!member.ended.ok()) return;
  for (const Flight& flight : member.flights) {
    if (!flight.in_flight || flight.started) continue;
    const std::optional<Rank> closed = ClosedPartnerOf(flight.operation);
    if (!closed.has_value()) continue;
    FailAll(rank,
            absl::UnavailableError(absl::StrCat(Describe(flight.operation), ": rank ",
                                                closed->value(), " closed the communicator")));
    return;
  }
}

std::optional<Rank> SimGroup::ClosedPartnerOf(const Operation& operation) const {
  if (IsPointToPoint(operation.kind)) {
    const Rank peer(operation.peer);
    return At(peer).closed ? std::optional<Rank>(peer) : std::nullopt;
  }
  for (int32_t r = 0; r < group_.size().value(); ++r) {
    const Member& other = At(Rank(r));
    if (other.closed && other.visible_collectives < operation.sequence) return Rank(r);
  }
  return std::nullopt;
}

void SimGroup::Run(const SimEvent& event, absl::Time now) {
  switch (event.kind) {
    case SimEvent::Kind::kPost:
      return Post({event.rank, event.ticket}, now);
    case SimEvent::Kind::kCompletion:
      return Complete({event.rank, event.ticket}, event.status, now);
    case SimEvent::Kind::kNotice:
      return FailAll(event.rank, event.status);
  }
}

}  // namespace pelton
