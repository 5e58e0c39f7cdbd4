#include "comm/transport/network/point_to_point.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "comm/transport/operation_check.h"
#include "core/base/status.h"

namespace pelton::network {
namespace {

uint64_t BytesOf(const Operation& operation) { return operation.count * SizeOf(operation.dtype); }

}  // namespace

PointToPoint::PointToPoint(const Members& members, Worker& worker)
    : members_(members), worker_(worker), peers_(static_cast<size_t>(members.size())) {
  for (Record& record : records_) record.owner = this;
}

absl::StatusOr<uint64_t> PointToPoint::Start(const Operation& operation, std::byte* memory) {
  const CompletionTable::Entry entry = completions_.Begin();
  const uint64_t ticket = entry.completion.ticket;
  Record& record = records_[entry.place];
  record.ticket = ticket;
  record.memory = memory;
  record.is_answered = false;
  record.status = absl::OkStatus();
  record.header = members_.MakeHeader(MessageType::kData, operation.peer);
  record.header.ticket = ticket;
  record.header.operation = operation;
  const bool sends = operation.kind == OperationKind::kSend;
  record.stage = sends ? Stage::kSending : Stage::kPosted;
  ++events_;
  if (sends) {
    RETURN_IF_ERROR(StartSend(record));
  } else {
    StartReceive(record);
  }
  return ticket;
}

absl::Status PointToPoint::StartSend(Record& record) {
  const int destination = record.header.operation.peer;
  Peer& peer = peers_[static_cast<size_t>(destination)];
  const uint64_t size_bytes = BytesOf(record.header.operation);
  record.header.operation.sequence = ++peer.sent;
  const bool is_rendezvous = size_bytes > kEagerBytes;
  const bool has_room =
      peer.untaken_messages < kWindowMessages && peer.untaken_bytes + size_bytes <= kWindowBytes;
  if (!is_rendezvous && has_room) {
    ++peer.untaken_messages;
    peer.untaken_bytes += size_bytes;
  } else {
    record.header.flags = kNeedsAck;
  }
  ASSIGN_OR_RETURN(const bool done,
                   worker_.Send(destination, {&record.header, record.memory, size_bytes,
                                              is_rendezvous, &record}));
  if (done) Sent(record);
  return absl::OkStatus();
}

void PointToPoint::StartReceive(Record& record) {
  Peer& peer = peers_[static_cast<size_t>(record.header.operation.peer)];
  const auto found = std::find_if(
      peer.arrivals.begin(), peer.arrivals.end(),
      [&](const Arrival& a) { return a.header.operation.tag == record.header.operation.tag; });
  if (found == peer.arrivals.end()) {
    peer.posted.push_back(&record);
    return;
  }
  const Arrival arrival = *found;
  peer.arrivals.erase(found);
  const bool is_kept = arrival.payload.is_rendezvous || arrival.payload.size_bytes > 0;
  if (!Meet(record, arrival) && is_kept) worker_.Release(arrival.payload);
}

int PointToPoint::FindSender(int32_t tag) {
  const int size = members_.size();
  for (int i = 0; i < size; ++i) {
    const int peer = (next_sender_ + i) % size;
    const std::deque<Arrival>& arrivals = peers_[static_cast<size_t>(peer)].arrivals;
    const bool has_sent = std::any_of(arrivals.begin(), arrivals.end(), [tag](const Arrival& a) {
      return a.header.operation.tag == tag;
    });
    if (!has_sent) continue;
    next_sender_ = (peer + 1) % size;
    return peer;
  }
  return kNoPeer;
}

bool PointToPoint::IsValid(const Header& header, const Payload& payload) {
  const Operation& send = header.operation;
  const Rank source(static_cast<int32_t>(header.source));
  return send.kind == OperationKind::kSend && send.peer == members_.rank() &&
         CheckOperation(send, source, members_.world_size()).ok() &&
         BytesOf(send) == payload.size_bytes && send.sequence == peers_[header.source].received + 1;
}

bool PointToPoint::Arrive(const Header& header, const Payload& payload) {
  if (!IsValid(header, payload)) return false;
  Peer& peer = peers_[header.source];
  ++peer.received;
  ++events_;
  const Arrival arrival{header, payload};
  const auto found = std::find_if(
      peer.posted.begin(), peer.posted.end(),
      [&](const Record* posted) { return posted->header.operation.tag == header.operation.tag; });
  if (found == peer.posted.end()) {
    peer.arrivals.push_back(arrival);
    return true;
  }
  Record& record = **found;
  peer.posted.erase(found);
  return Meet(record, arrival);
}

bool PointToPoint::Meet(Record& record, const Arrival& arrival) {
  const Rank source(static_cast<int32_t>(arrival.header.source));
  const std::string difference = DifferenceOfPair(arrival.header.operation, source,
                                                  record.header.operation, Rank(members_.rank()));
  if (!difference.empty()) {
    Refuse(arrival.header, record.header.operation);
    if (!arrival.payload.is_rendezvous) Settle(arrival.header);
    Finish(record, absl::InvalidArgumentError(
                       absl::StrCat(Describe(record.header.operation), ": ", difference)));
    return false;
  }
  if (arrival.payload.is_rendezvous) {
    record.stage = Stage::kPulling;
    record.met = arrival.header;
    const absl::StatusOr<bool> done = worker_.Pull(arrival.payload, record.memory, &record);
    if (!done.ok()) failure_ = done.status();
    if (done.ok() && *done) Pulled(record);
    return true;
  }
  if (arrival.payload.size_bytes > 0) {
    std::memcpy(record.memory, arrival.payload.data, arrival.payload.size_bytes);
  }
  Settle(arrival.header);
  Finish(record, absl::OkStatus());
  return false;
}

// Says that a short message was taken: at once where the sender waits for it, else in batches.
void PointToPoint::Settle(const Header& send) {
  const auto source = static_cast<int>(send.source);
  if ((send.flags & kNeedsAck) != 0) {
    Header ack = members_.MakeHeader(MessageType::kAck, source);
    ack.ticket = send.ticket;
    worker_.Post(source, ack);
    return;
  }
  Peer& peer = peers_[send.source];
  ++peer.owed_messages;
  peer.owed_bytes += BytesOf(send.operation);
  if (peer.owed_messages < kWindowMessages / 2 && peer.owed_bytes < kWindowBytes / 2) return;
  Header credit = members_.MakeHeader(MessageType::kCredit, source);
  credit.operation.count = peer.owed_messages;
  credit.operation.sequence = peer.owed_bytes;
  peer.owed_messages = peer.owed_bytes = 0;
  worker_.Post(source, credit);
}

void PointToPoint::Refuse(const Header& send, const Operation& receive) {
  const auto source = static_cast<int>(send.source);
  Header refusal = members_.MakeHeader(MessageType::kRefusal, source);
  refusal.ticket = send.ticket;
  refusal.operation = receive;
  worker_.Post(source, refusal);
}

void PointToPoint::Answer(const Header& header) {
  ++events_;
  if (header.type == MessageType::kCredit) {
    Peer& peer = peers_[header.source];
    peer.untaken_messages -= std::min(peer.untaken_messages, header.operation.count);
    peer.untaken_bytes -= std::min(peer.untaken_bytes, header.operation.sequence);
    return;
  }
  const size_t place = completions_.PlaceOf(header.ticket);
  if (place == CompletionTable::kNoPlace) return;  // a short send that was done when it had left
  Record& record = records_[place];
  const Operation& send = record.header.operation;
  const bool is_waiting = record.stage == Stage::kSending || record.stage == Stage::kAwaitingAck;
  if (!is_waiting || send.peer != static_cast<int32_t>(header.source)) return;
  if (header.type == MessageType::kRefusal) {
    const Rank peer(send.peer);
    if (!CheckOperation(header.operation, peer, members_.world_size()).ok()) return;
    record.status = absl::InvalidArgumentError(
        absl::StrCat(Describe(send), ": ",
                     DifferenceOfPair(send, Rank(members_.rank()), header.operation, peer)));
  }
  record.is_answered = true;
  if (record.stage == Stage::kAwaitingAck) Finish(record, record.status);
}

void PointToPoint::Sent(Record& record) {
  if (record.is_answered || (record.header.flags & kNeedsAck) == 0) {
    Finish(record, record.status);
  } else {
    record.stage = Stage::kAwaitingAck;
  }
}

void PointToPoint::Ended(Record& record, const absl::Status& status) {
  if (record.stage != Stage::kSending && record.stage != Stage::kPulling) return;
  if (!status.ok()) {
    failure_ = status;
  } else if (record.stage == Stage::kSending) {
    Sent(record);
  } else {
    Pulled(record);
  }
}

void PointToPoint::Pulled(Record& record) {
  Settle(record.met);
  Finish(record, absl::OkStatus());
}

void PointToPoint::Finish(Record& record, const absl::Status& status) {
  record.stage = Stage::kDone;
  completions_.End(record.ticket, status);
  ++events_;
}

OperationRunner::State PointToPoint::Query(uint64_t ticket) const {
  return completions_.Query({ticket});
}

int PointToPoint::oldest_peer() const {
  const size_t place = completions_.PlaceOf(completions_.oldest());
  return place == CompletionTable::kNoPlace ? kNoPeer : records_[place].header.operation.peer;
}

bool PointToPoint::Needs(int peer) const {
  return std::any_of(records_.begin(), records_.end(), [peer](const Record& record) {
    return record.stage != Stage::kDone && record.header.operation.peer == peer;
  });
}

void PointToPoint::DropArrivals() {
  for (Peer& peer : peers_) {
    for (const Arrival& arrival : peer.arrivals) {
      if (arrival.payload.is_rendezvous || arrival.payload.size_bytes > 0) {
        worker_.Release(arrival.payload);
      }
    }
    peer.arrivals.clear();
    peer.posted.clear();
  }
}

void PointToPoint::Cancel(const absl::Status& reason) {
  for (Record& record : records_) {
    if (record.stage != Stage::kDone) Finish(record, reason);
  }
}

}  // namespace pelton::network
