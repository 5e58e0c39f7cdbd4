#include "comm/transport/shm/neighbors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton::shm {
namespace {

constexpr uint64_t kGatherBytes = uint64_t{256} << 10;
// Pieces that are kept aside until the destinations have read what they replace.
constexpr uint64_t kStagedPieces = 8;
// Operations that keep the memory of their pieces for the next.
constexpr size_t kKeptMemory = 4;

}  // namespace

Neighbors::Neighbors(const Context& context)
    : context_(context),
      expected_(context.world_size()),
      unmatched_(context.world_size()),
      is_blocked_(context.world_size()) {
  for (int peer = 0; peer < context.world_size(); ++peer) {
    senders_.emplace_back(context.arena.edge_queue(context.rank, peer));
    receivers_.emplace_back(context.arena.edge_queue(peer, context.rank));
  }
  flights_.reserve(limits::kMaxOperationsInFlight);
}

Neighbors::~Neighbors() { Cancel(); }

void Neighbors::Cancel() {
  for (FlightPointer& flight : flights_) TakeBackCopy(*flight);
  flights_.clear();
  for (std::vector<Expected>& expected : expected_) expected.clear();
  NoteOldest();
}

Neighbors::FlightPointer Neighbors::TakeFlight() {
  if (idle_.empty()) return std::make_unique<Flight>();
  FlightPointer flight = std::move(idle_.back());
  idle_.pop_back();
  return flight;
}

absl::Status Neighbors::Start(const Operation& operation, uint64_t ticket,
                              NeighborOperation checked) {
  FlightPointer flight = TakeFlight();
  flight->ticket = ticket;
  flight->Begin(operation, std::move(checked));
  RETURN_IF_ERROR(CopyIfUnreadable(*flight));
  Expect(*flight);
  flights_.push_back(std::move(flight));
  if (flights_.size() == 1) NoteOldest();
  return absl::OkStatus();
}

// Where some destination may not read this process's memory, all of them read a copy.
absl::Status Neighbors::CopyIfUnreadable(Flight& flight) {
  if (flight.operation.source_region != kPrivateRegion) return absl::OkStatus();
  if (flight.size_bytes <= EdgeQueue::kEntryBytes) return absl::OkStatus();
  const auto reads_us = [this](const Outgoing& outgoing) {
    return context_.links.reads_us(context_.world_ranks[outgoing.peer]);
  };
  if (std::all_of(flight.outgoing.begin(), flight.outgoing.end(), reads_us)) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(flight.copy, Region::Create(flight.size_bytes, "neighbors"));
  std::memcpy(flight.copy->data(), flight.checked.memory.source, flight.size_bytes);
  for (const Outgoing& outgoing : flight.outgoing) {
    context_.links.Lend(*flight.copy, context_.world_ranks[outgoing.peer]);
  }
  flight.operation.set_source({flight.copy->id(), 0});
  flight.is_staged = false;
  return absl::OkStatus();
}

void Neighbors::TakeBackCopy(Flight& flight) const {
  if (flight.copy == nullptr) return;
  for (const Outgoing& outgoing : flight.outgoing) {
    context_.links.EndLoan(flight.copy->id(), context_.world_ranks[outgoing.peer]);
  }
  flight.copy.reset();
}

// Takes the oldest message of each source with its tag, or leaves word that it is expected.
void Neighbors::Expect(Flight& flight) {
  for (size_t i = 0; i < flight.incoming.size(); ++i) {
    const int peer = flight.incoming[i].peer;
    std::vector<EdgeMessage>& unmatched = unmatched_[peer];
    const auto found = std::find_if(
        unmatched.begin(), unmatched.end(),
        [&](const EdgeMessage& message) { return message.tag == flight.operation.tag; });
    if (found == unmatched.end()) {
      expected_[peer].push_back({flight.operation.tag, &flight, i});
      continue;
    }
    flight.Meet(i, *found);
    unmatched.erase(found);
  }
}

bool Neighbors::Match(int peer, const EdgeMessage& message) {
  std::vector<Expected>& expected = expected_[peer];
  for (auto found = expected.begin(); found != expected.end(); ++found) {
    if (found->tag != message.tag) continue;
    found->flight->Meet(found->source, message);
    expected.erase(found);
    return true;
  }
  return false;
}

// Of those peers only from which something is expected: the others' posts lie where they are.
bool Neighbors::TakePosts() {
  bool has_taken = false;
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    EdgeReceiver& receiver = receivers_[peer];
    bool is_news = false;
    while (!expected_[peer].empty() && unmatched_[peer].size() < EdgeQueue::kDepth) {
      const EdgeMessage* const message = receiver.Next();
      if (message == nullptr) break;
      if (!Match(peer, *message)) unmatched_[peer].push_back(*message);
      receiver.Pop();
      is_news = true;
    }
    if (is_news) context_.Ring(peer);  // it may wait for room
    has_taken |= is_news;
  }
  return has_taken;
}

absl::StatusOr<bool> Neighbors::Step(OnDone on_done) {
  bool moved = false;
  std::fill(is_blocked_.begin(), is_blocked_.end(), false);
  for (FlightPointer& flight : flights_) {
    if (flight->phase == Phase::kPost) moved |= Post(*flight) == Outcome::kMoved;
  }
  moved |= TakePosts();
  for (size_t i = 0; i < flights_.size();) {
    ASSIGN_OR_RETURN(const Outcome outcome, Advance(*flights_[i]));
    moved |= outcome != Outcome::kWaiting;
    if (outcome != Outcome::kDone) {
      ++i;
      continue;
    }
    End(*flights_[i], on_done);
    idle_.push_back(std::move(flights_[i]));
    flights_.erase(flights_.begin() + static_cast<ptrdiff_t>(i));
  }
  if (moved) NoteOldest();
  return moved;
}

Neighbors::Outcome Neighbors::Post(Flight& flight) {
  bool moved = false;
  bool is_posted = true;
  for (Outgoing& outgoing : flight.outgoing) {
    if (outgoing.is_posted) continue;
    EdgeMessage message = flight.Message();
    message.weight = outgoing.weight;
    // Later ones to this peer must not overtake one that has found no room.
    if (is_blocked_[outgoing.peer] ||
        !senders_[outgoing.peer].Post(message, flight.checked.memory.source, flight.size_bytes,
                                      outgoing.waits)) {
      is_blocked_[outgoing.peer] = true;
      is_posted = false;
      continue;
    }
    outgoing.is_posted = moved = true;
    outgoing.entry = message.entry;
    context_.Ring(outgoing.peer);
  }
  if (!is_posted) return moved ? Outcome::kMoved : Outcome::kWaiting;
  flight.phase = Phase::kCome;
  return Outcome::kMoved;
}

// Goes on as far as it can at once, but reads one piece only.
absl::StatusOr<Neighbors::Outcome> Neighbors::Advance(Flight& flight) {
  if (flight.phase == Phase::kPost) return Outcome::kWaiting;
  if (flight.phase == Phase::kCome) {
    if (flight.come < flight.incoming.size()) return Outcome::kWaiting;
    flight.Compare(context_.rank);
    flight.phase = flight.difference.ok() ? Phase::kReach : Phase::kAnswers;
    if (!flight.difference.ok()) AnswerAll(flight);
  }
  if (flight.phase == Phase::kReach) {
    ASSIGN_OR_RETURN(const Outcome reached, ReachAll(flight));
    if (reached == Outcome::kWaiting) return reached;
  }
  if (flight.phase == Phase::kRead) {
    ASSIGN_OR_RETURN(const Outcome read, Read(flight));
    if (flight.phase == Phase::kRead) return read;
  }
  return TakeAnswers(flight);
}

absl::StatusOr<Neighbors::Outcome> Neighbors::ReachAll(Flight& flight) {
  for (Incoming& incoming : flight.incoming) {
    if (incoming.message.place != EdgeMessage::kInMemory) continue;
    flight.reads_memory = true;
    const EdgeMessage::Where where = incoming.message.where;
    absl::StatusOr<Reach> reach = ReachOf(context_, incoming.peer, {where.region, where.offset},
                                          incoming.count * SizeOf(flight.operation.dtype));
    if (absl::IsNotFound(reach.status())) return Outcome::kWaiting;  // is on its way
    ASSIGN_OR_RETURN(incoming.reach, std::move(reach));
  }
  flight.phase = Phase::kRead;
  return Outcome::kMoved;
}

absl::StatusOr<Neighbors::Outcome> Neighbors::Read(Flight& flight) {
  ASSIGN_OR_RETURN(bool moved, flight.combines() ? CombinePiece(flight) : GatherPiece(flight));
  if (flight.is_staged) moved |= WriteBack(flight);
  if (!flight.is_read()) return moved ? Outcome::kMoved : Outcome::kWaiting;
  AnswerAll(flight);
  flight.phase = Phase::kAnswers;
  return Outcome::kMoved;
}

bool Neighbors::MayRead(const Reading& reading, const Flight& flight) {
  return std::all_of(flight.incoming.begin(), flight.incoming.end(), [&](const Incoming& incoming) {
    return incoming.message.place != EdgeMessage::kInMemory || reading.MayRead(incoming.peer);
  });
}

// Null: it is the private memory of another process.
const std::byte* Neighbors::DataOf(const Incoming& incoming) const {
  const EdgeMessage& message = incoming.message;
  if (message.place == EdgeMessage::kInMemory) return incoming.reach.data;
  if (message.place == EdgeMessage::kInEntry)
    return receivers_[incoming.peer].tensor(message.entry);
  return message.bytes;
}

// False: it waits, for destinations to read what a staged piece is to replace, or for an abort.
absl::StatusOr<bool> Neighbors::CombinePiece(Flight& flight) {
  const uint64_t left = flight.size_bytes - flight.read_bytes;
  if (left == 0) return false;
  if (!flight.reads_memory && !flight.is_staged) {
    RETURN_IF_ERROR(Combine(flight, left));
    flight.read_bytes = flight.size_bytes;
    return true;
  }
  const uint64_t piece = flight.piece_bytes();
  if (flight.is_staged && flight.read_bytes == flight.written_bytes + kStagedPieces * piece) {
    return false;
  }
  const uint64_t size_bytes = std::min(left, piece);
  ASSIGN_OR_RETURN(
      const bool is_combined,
      Reading(context_).Try([&flight](const Reading& reading) { return MayRead(reading, flight); },
                            [&] { return Combine(flight, size_bytes); }));
  if (!is_combined) return false;
  flight.read_bytes += size_bytes;
  for (const Incoming& incoming : flight.incoming) {
    if (incoming.message.place != EdgeMessage::kInMemory) continue;
    receivers_[incoming.peer].ShowRead(incoming.message.entry, flight.read_bytes);
    context_.Ring(incoming.peer);
  }
  return true;
}

// The next `size_bytes` of all tensors.
absl::Status Neighbors::Combine(Flight& flight, uint64_t size_bytes) {
  const uint64_t begin = flight.read_bytes;
  tensors_.assign(1, flight.checked.memory.source + begin);
  for (size_t i = 0; i < flight.incoming.size(); ++i) {
    const Incoming& incoming = flight.incoming[i];
    const std::byte* const data = DataOf(incoming);
    if (data != nullptr) {
      tensors_.push_back(data + begin);
      continue;
    }
    const uint64_t piece = flight.piece_bytes();
    const uint64_t room = piece * flight.incoming.size();
    if (flight.pieces.size() < room) flight.pieces.resize(room);  // it may be one of fewer sources
    std::byte* const copied = flight.pieces.data() + i * piece;
    RETURN_IF_ERROR(incoming.reach.Read(begin, copied, size_bytes));
    tensors_.push_back(copied);
  }
  const DType dtype = flight.operation.dtype;
  WeightedMean(tensors_, flight.factors, {PlaceOf(flight, size_bytes), dtype},
               size_bytes / SizeOf(dtype), terms_);
  return absl::OkStatus();
}

std::byte* Neighbors::PlaceOf(Flight& flight, uint64_t size_bytes) const {
  if (!flight.is_staged) return flight.checked.memory.target + flight.read_bytes;
  const uint64_t piece = flight.piece_bytes();
  const uint64_t room = kStagedPieces * piece;
  if (flight.staged.size() < room) flight.staged.resize(room);
  return flight.staged.data() + flight.read_bytes % room;
}

bool Neighbors::IsReadBelow(const Flight& flight, uint64_t end) const {
  return std::all_of(flight.outgoing.begin(), flight.outgoing.end(), [&](const Outgoing& outgoing) {
    const EdgeQueue::Entry& entry = senders_[outgoing.peer].entry(outgoing.entry);
    return outgoing.is_answered || entry.read_bytes.load() >= end ||
           entry.answer.load() != EdgeQueue::kPending;
  });
}

bool Neighbors::WriteBack(Flight& flight) const {
  const uint64_t piece = flight.piece_bytes();
  bool moved = false;
  while (flight.written_bytes < flight.read_bytes) {
    const uint64_t begin = flight.written_bytes;
    const uint64_t size_bytes = std::min(piece, flight.size_bytes - begin);
    if (!IsReadBelow(flight, begin + size_bytes)) break;
    std::memcpy(flight.checked.memory.target + begin,
                flight.staged.data() + begin % (kStagedPieces * piece), size_bytes);
    flight.written_bytes += size_bytes;
    moved = true;
  }
  return moved;
}

absl::StatusOr<bool> Neighbors::GatherPiece(Flight& flight) {
  if (flight.gathered == flight.incoming.size()) return false;
  const Incoming& incoming = flight.incoming[flight.gathered];
  const uint64_t total = incoming.count * SizeOf(flight.operation.dtype);
  const uint64_t size_bytes = std::min(kGatherBytes, total - flight.read_bytes);
  std::byte* const target = flight.checked.memory.target + flight.gathered_place;
  if (incoming.message.place != EdgeMessage::kInMemory) {
    if (total > 0) std::memcpy(target, DataOf(incoming), total);
    flight.read_bytes = total;
  } else {
    ASSIGN_OR_RETURN(const bool is_read, Reading(context_).TryFrom(incoming.peer, [&] {
      return incoming.reach.Read(flight.read_bytes, target + flight.read_bytes, size_bytes);
    }));
    if (!is_read) return false;
    flight.read_bytes += size_bytes;
  }
  if (flight.read_bytes < total) return true;
  flight.gathered_place += total;
  flight.read_bytes = 0;
  ++flight.gathered;
  return true;
}

void Neighbors::AnswerAll(Flight& flight) {
  for (Incoming& incoming : flight.incoming) {
    incoming.reach = Reach();
    if (!incoming.message.has_entry()) continue;
    const auto answer = incoming.differs ? EdgeQueue::kDifferent : EdgeQueue::kReceived;
    receivers_[incoming.peer].Answer(incoming.message.entry, answer, flight.Receive(incoming));
    context_.Ring(incoming.peer);
  }
}

Neighbors::Outcome Neighbors::TakeAnswers(Flight& flight) {
  bool moved = false;
  bool is_done = true;
  for (Outgoing& outgoing : flight.outgoing) {
    if (!outgoing.waits || outgoing.is_answered) continue;
    const EdgeQueue::Entry& entry = senders_[outgoing.peer].entry(outgoing.entry);
    const uint32_t answer = entry.answer.load();
    if (answer == EdgeQueue::kPending) {
      is_done = false;
      continue;
    }
    outgoing.is_answered = moved = true;
    if (answer == EdgeQueue::kDifferent) flight.Differs(outgoing, entry.reply.Get(), context_.rank);
    senders_[outgoing.peer].FreeEntry(outgoing.entry);
  }
  if (!is_done) return moved ? Outcome::kMoved : Outcome::kWaiting;
  if (flight.is_staged && flight.difference.ok()) WriteBack(flight);
  return Outcome::kDone;
}

void Neighbors::End(Flight& flight, OnDone on_done) {
  TakeBackCopy(flight);
  on_done(flight.ticket, Annotate(flight.difference, [this, &flight] {
            return absl::StrCat(NameOf(flight.operation.kind), " of rank ", context_.rank);
          }));
  flight.checked.table.reset();
  if (idle_.size() < kKeptMemory) return;
  flight.staged = {};
  flight.pieces = {};
}

bool Neighbors::Needs(int peer) const {
  return std::any_of(flights_.begin(), flights_.end(),
                     [peer](const FlightPointer& flight) { return flight->Needs(peer); });
}

void Neighbors::NoteOldest() {
  oldest_peer_.store(flights_.empty() ? kNoPeer : flights_.front()->awaited(),
                     std::memory_order_relaxed);
}

}  // namespace pelton::shm
