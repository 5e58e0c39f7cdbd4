#include "core/pipeline/operation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/pipeline/weight_table.h"
#include "core/plan/round_mode.h"

namespace pelton {
namespace {

template <typename A, typename B>
std::string Differ(absl::string_view what, const A& mine, Rank rank, const B& theirs, Rank peer) {
  return absl::StrCat(what, " is ", mine, " on rank ", rank.value(), " and ", theirs, " on rank ",
                      peer.value());
}

std::string DifferInMode(RoundMode mine, Rank rank, RoundMode theirs, Rank peer) {
  return absl::StrCat(
      "the backward pass is one of a forward pass in ", NameOf(mine), " mode on rank ",
      rank.value(), " and of one in ", NameOf(theirs), " mode on rank ", peer.value(),
      ", and their gradients must not be added up; a backward pass that only some ranks make "
      "belongs within no_sync()");
}

std::string FieldDifferenceOf(const Operation& mine, Rank rank, const Operation& theirs,
                              Rank peer) {
  if (mine.kind != theirs.kind) {
    return Differ("the operation", NameOf(mine.kind), rank, NameOf(theirs.kind), peer);
  }
  if (mine.dtype != theirs.dtype) {
    return Differ("dtype", NameOf(mine.dtype), rank, NameOf(theirs.dtype), peer);
  }
  if (mine.count != theirs.count) return Differ("count", mine.count, rank, theirs.count, peer);
  if (Reduces(mine.kind) && mine.reduce_op != theirs.reduce_op) {
    return Differ("op", NameOf(mine.reduce_op), rank, NameOf(theirs.reduce_op), peer);
  }
  if (HasRoot(mine.kind) && mine.peer != theirs.peer) {
    return Differ("root", mine.peer, rank, theirs.peer, peer);
  }
  // A collective has no use for its tag: callers that know shapes put a mark of them there.
  const bool are_marked = !IsPointToPoint(mine.kind) && mine.tag != 0 && theirs.tag != 0;
  if (are_marked && mine.tag != theirs.tag) {
    return absl::StrCat("the shapes of the tensors differ on rank ", rank.value(), " and rank ",
                        peer.value(), ", although both have ", mine.count, " elements");
  }
  return "";
}

}  // namespace

Operation AllReduceOf(ReduceOp op, DType dtype, uint64_t count, Location location,
                      CommunicatorId communicator) {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.dtype = dtype;
  operation.reduce_op = op;
  operation.count = count;
  operation.communicator = communicator;
  operation.set_source(location);
  operation.set_target(location);
  return operation;
}

Operation SendOrReceiveOf(OperationKind kind, Rank peer, uint64_t size_bytes, Location location,
                          CommunicatorId communicator) {
  Operation operation;
  operation.kind = kind;
  operation.dtype = DType::kUInt8;
  operation.count = size_bytes;
  operation.peer = peer.value();
  operation.communicator = communicator;
  kind == OperationKind::kSend ? operation.set_source(location) : operation.set_target(location);
  return operation;
}

std::string Describe(const Operation& operation) {
  std::string text = absl::StrCat(NameOf(operation.kind), " #", operation.sequence);
  if (operation.bucket != kNoBucket) {
    absl::StrAppend(&text, " of bucket ", WithoutMode(operation.bucket).value());
  }
  if (HasNoTensors(operation.kind)) return text;
  absl::StrAppend(&text, " (", NameOf(operation.dtype), " x ", operation.count);
  if (Reduces(operation.kind)) absl::StrAppend(&text, ", ", NameOf(operation.reduce_op));
  if (HasRoot(operation.kind)) absl::StrAppend(&text, ", root ", operation.peer);
  if (IsPointToPoint(operation.kind)) absl::StrAppend(&text, ", peer ", operation.peer);
  return absl::StrCat(text, ")");
}

namespace {

// A weight that travels is a float64.
uint64_t SentToNeighbors(int32_t table_id, uint64_t tensor_bytes) {
  const auto table = WeightTable::Find(table_id);
  if (table == nullptr) return 0;
  const uint64_t weight_bytes = table->sends_weights() ? sizeof(double) : 0;
  return table->destinations().size() * (tensor_bytes + weight_bytes);
}

uint64_t GatheredFromNeighbors(const Operation& operation) {
  const auto table = WeightTable::Find(operation.peer);
  if (table == nullptr) return 0;
  return table->TotalCount(operation.count) * SizeOf(operation.dtype);
}

}  // namespace

uint64_t SentBytesOf(const Operation& operation, Rank rank, WorldSize world_size) {
  const OperationTraits& traits = TraitsOf(operation.kind);
  const uint64_t one = operation.count * SizeOf(operation.dtype);
  if (traits.scope == KindScope::kNeighbors) return SentToNeighbors(operation.peer, one);
  if (traits.sent_bytes == nullptr) return 0;
  return traits.sent_bytes({one, static_cast<uint64_t>(world_size.value()),
                            traits.has_root && operation.peer == rank.value()});
}

Extent ExtentOf(const Operation& operation, Rank rank, WorldSize world_size) {
  const OperationTraits& traits = TraitsOf(operation.kind);
  const uint64_t one = operation.count * SizeOf(operation.dtype);
  const auto bytes_of = [&](TensorLength length) -> uint64_t {
    if (length == TensorLength::kNone) return 0;
    if (length == TensorLength::kOfNeighbors) return GatheredFromNeighbors(operation);
    if (IsOnRootOnly(length) && operation.peer != rank.value()) return 0;
    return HasChunks(length) ? one * static_cast<uint64_t>(world_size.value()) : one;
  };
  return {bytes_of(traits.source), bytes_of(traits.target)};
}

std::string DifferenceOf(const Operation& mine, Rank rank, const Operation& theirs, Rank peer) {
  const RoundMode mode = ModeOf(mine.bucket);
  if (mode != ModeOf(theirs.bucket)) return DifferInMode(mode, rank, ModeOf(theirs.bucket), peer);
  const std::string field = FieldDifferenceOf(mine, rank, theirs, peer);
  if (mine.bucket == theirs.bucket) return field;
  // Where the calls are not the same ones, the reader wants to know which they are.
  return absl::StrCat(field, field.empty() ? "" : "; ",
                      Differ("bucket", WithoutMode(mine.bucket).value(), rank,
                             WithoutMode(theirs.bucket).value(), peer));
}

namespace {

constexpr size_t kFirstSlots = 16;  // a power of two, as all sizes

absl::Status Unknown(uint64_t ticket, uint64_t launched) {
  return absl::OutOfRangeError(absl::StrCat(
      "completion: ticket ", ticket, " is none of this communicator's, which are 1 to ", launched));
}

}  // namespace

CompletionTable::CompletionTable() : slots_(kFirstSlots) {}

CompletionTable::Entry CompletionTable::Begin() {
  PELTON_CHECK(has_room());
  if (2 * (in_flight_ + 1) > slots_.size()) {
    std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    for (const Slot& slot : before) {
      if (slot.ticket != 0) Insert(slot);
    }
  }
  size_t place = in_flight_;  // as many as were ever in use at a time
  if (!free_.empty()) {
    place = free_.back();
    free_.pop_back();
  }
  ++in_flight_;
  Insert({++launched_, place});
  return {{launched_}, place};
}

void CompletionTable::Insert(Slot slot) {
  size_t index = Home(slot.ticket);
  while (slots_[index].ticket != 0) index = Home(index + 1);
  slots_[index] = slot;
}

size_t CompletionTable::SlotOf(uint64_t ticket) const {
  for (size_t index = Home(ticket); slots_[index].ticket != 0; index = Home(index + 1)) {
    if (slots_[index].ticket == ticket) return index;
  }
  return slots_.size();
}

size_t CompletionTable::PlaceOf(uint64_t ticket) const {
  const size_t index = SlotOf(ticket);
  return index == slots_.size() ? kNoPlace : slots_[index].place;
}

// What lies behind it moves up, unless that would bring it before its home.
void CompletionTable::Erase(size_t hole) {
  for (size_t next = Home(hole + 1); slots_[next].ticket != 0; next = Home(next + 1)) {
    const size_t from_home = Home(next - Home(slots_[next].ticket));
    if (from_home < Home(next - hole)) continue;
    slots_[hole] = slots_[next];
    hole = next;
  }
  slots_[hole] = Slot{};
}

void CompletionTable::End(uint64_t ticket, const absl::Status& status) {
  const size_t index = SlotOf(ticket);
  PELTON_CHECK(index < slots_.size()) << "ticket " << ticket << " is not in flight";
  free_.push_back(slots_[index].place);
  Erase(index);
  --in_flight_;
  if (!status.ok()) Remember(ticket, status);
}

void CompletionTable::EndAll(const absl::Status& status) {
  std::vector<uint64_t> tickets;
  for (const Slot& slot : slots_) {
    if (slot.ticket != 0) tickets.push_back(slot.ticket);
  }
  std::sort(tickets.begin(), tickets.end());
  for (const uint64_t ticket : tickets) End(ticket, status);
}

void CompletionTable::Remember(uint64_t ticket, const absl::Status& failure) {
  failures_[ticket] = failure;
  if (failures_.size() <= kMaxFailures) return;
  forgotten_ = std::max(forgotten_, failures_.begin()->first);
  failures_.erase(failures_.begin());
}

uint64_t CompletionTable::oldest() const {
  uint64_t oldest = 0;
  for (const Slot& slot : slots_) {
    if (slot.ticket != 0 && (oldest == 0 || slot.ticket < oldest)) oldest = slot.ticket;
  }
  return oldest;
}

OperationRunner::State CompletionTable::Query(Completion completion) const {
  const uint64_t ticket = completion.ticket;
  if (SlotOf(ticket) < slots_.size()) return {};
  if (ticket == 0 || ticket > launched_) return {true, Unknown(ticket, launched_)};
  if (failures_.empty()) return {true, absl::OkStatus()};
  const auto failed = failures_.find(ticket);
  if (failed != failures_.end()) return {true, failed->second};
  if (ticket > forgotten_) return {true, absl::OkStatus()};
  return {true, absl::OutOfRangeError(absl::StrCat(
                    "completion: ticket ", ticket, " was asked for after ", kMaxFailures,
                    " later operations had failed: how it ended is not known any more"))};
}

}  // namespace pelton
