#include "comm/transport/shm/neighbor_flight.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pelton::shm {
namespace {

// What is read of all tensors of a combination together: small enough to stay in the second-level
// cache, where what is copied from other processes is combined at once.
constexpr uint64_t kPiecesBytes = uint64_t{512} << 10;
constexpr uint64_t kMaxPieceBytes = uint64_t{128} << 10;
constexpr uint64_t kMinPieceBytes = uint64_t{16} << 10;

bool ReceivesFrom(const WeightTable& table, Rank rank) {
  return std::any_of(table.sources().begin(), table.sources().end(),
                     [rank](const Neighbor& neighbor) { return neighbor.rank == rank; });
}

// As the general form's messages, so that the errors are the same.
Operation SentOf(const EdgeMessage& message) {
  Operation sent;
  sent.kind = OperationKind::kSend;
  sent.dtype = message.dtype;
  sent.flags = message.flags;
  sent.count = message.count;
  sent.bucket = BucketId(message.bucket);
  sent.tag = message.tag;
  sent.target_offset = static_cast<uint64_t>(message.shape_mark);
  return sent;
}

}  // namespace

uint64_t NeighborFlight::piece_bytes() const {
  const uint64_t even = kPiecesBytes / factors.size() / kMinPieceBytes * kMinPieceBytes;
  return std::clamp(even, kMinPieceBytes, kMaxPieceBytes);
}

void NeighborFlight::Begin(const Operation& begun, NeighborOperation its) {
  operation = begun;
  checked = std::move(its);
  phase = Phase::kPost;
  size_bytes = operation.count * SizeOf(operation.dtype);
  difference = absl::OkStatus();
  come = gathered = 0;
  gathered_place = read_bytes = written_bytes = 0;
  reads_memory = false;
  incoming.clear();
  outgoing.clear();
  const WeightTable& table = *checked.table;
  factors.assign(1, table.own());
  for (size_t i = 0; i < table.sources().size(); ++i) {
    Incoming& from = incoming.emplace_back();
    from.peer = table.sources()[i].rank.value();
    from.count = combines() ? operation.count : table.CountOf(i, operation.count);
    factors.push_back(table.sources()[i].weight);
  }
  const bool is_large = size_bytes > EdgeQueue::kEntryBytes;
  for (const Neighbor& destination : table.destinations()) {
    Outgoing& to = outgoing.emplace_back();
    to.peer = destination.rank.value();
    to.weight = destination.weight;
    to.waits = is_large || !ReceivesFrom(table, destination.rank);
  }
  is_staged =
      combines() && is_large && !outgoing.empty() && checked.memory.source == checked.memory.target;
}

EdgeMessage NeighborFlight::Message() const {
  EdgeMessage message;
  message.tag = operation.tag;
  message.bucket = operation.bucket.value();
  message.shape_mark = static_cast<int32_t>(operation.sequence);
  message.dtype = operation.dtype;
  message.flags = FlagsOf(operation.kind, checked.table->sends_weights());
  message.count = operation.count;
  if (size_bytes > EdgeQueue::kEntryBytes) {
    message.place = EdgeMessage::kInMemory;
    message.where = {operation.source_region, operation.source_offset};
  } else if (size_bytes > EdgeMessage::kPostBytes) {
    message.place = EdgeMessage::kInEntry;
  }
  return message;
}

void NeighborFlight::Meet(size_t source, const EdgeMessage& message) {
  incoming[source].message = message;
  incoming[source].has_come = true;
  ++come;
}

Operation NeighborFlight::Receive(const Incoming& from) const {
  Operation receive;
  receive.kind = OperationKind::kRecv;
  receive.dtype = operation.dtype;
  receive.flags = FlagsOf(operation.kind, checked.table->sends_weights());
  receive.peer = from.peer;
  receive.count = from.count;
  receive.bucket = operation.bucket;
  receive.tag = operation.tag;
  receive.source_offset = operation.sequence;
  return receive;
}

void NeighborFlight::Compare(int rank) {
  const Operation mine = Receive(incoming.empty() ? Incoming() : incoming[0]);
  for (size_t i = 0; i < incoming.size(); ++i) {
    Incoming& from = incoming[i];
    const EdgeMessage& message = from.message;
    if (checked.table->sends_weights()) factors[1 + i] *= message.weight;
    const bool is_alike = message.dtype == mine.dtype && message.flags == mine.flags &&
                          message.count == from.count && message.bucket == mine.bucket.value() &&
                          message.shape_mark == static_cast<int32_t>(mine.source_offset);
    if (is_alike) continue;
    const Operation receive = Receive(from);
    const std::string what =
        DifferenceOfPair(SentOf(message), Rank(from.peer), receive, Rank(rank));
    from.differs = !what.empty();
    if (!from.differs) continue;
    difference.Update(absl::InvalidArgumentError(absl::StrCat(Describe(receive), ": ", what)));
  }
}

void NeighborFlight::Differs(const Outgoing& to, const Operation& reply, int rank) {
  const Operation sent = SentOf(Message());
  difference.Update(absl::InvalidArgumentError(absl::StrCat(
      Describe(sent), ": ", DifferenceOfPair(sent, Rank(rank), reply, Rank(to.peer)))));
}

bool NeighborFlight::Needs(int peer) const {
  const auto waits_for = [&](const Incoming& from) {
    const bool reads = from.message.place == EdgeMessage::kInMemory && phase != Phase::kAnswers;
    return from.peer == peer && (!from.has_come || reads);
  };
  const auto sends_to = [peer](const Outgoing& to) {
    return to.peer == peer && !(to.waits ? to.is_answered : to.is_posted);
  };
  return std::any_of(incoming.begin(), incoming.end(), waits_for) ||
         std::any_of(outgoing.begin(), outgoing.end(), sends_to);
}

int NeighborFlight::awaited() const {
  for (const Incoming& from : incoming) {
    if (!from.has_come) return from.peer;
  }
  for (const Outgoing& to : outgoing) {
    if (to.waits && !to.is_answered) return to.peer;
  }
  return kNoPeer;
}

}  // namespace pelton::shm
