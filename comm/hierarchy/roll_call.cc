#include "comm/hierarchy/roll_call.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/hierarchy/wires.h"
#include "core/base/status.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"

namespace pelton::hierarchy {
namespace {

// Longer than ranks that train alike are apart, shorter than any deadline.
constexpr absl::Duration kLook = absl::Milliseconds(10);
// A leader that waits says so at its first look, so a leader that is silent at the second look has
// not launched.
constexpr int kLooksForLeaders = 2;
constexpr size_t kBits = 64;

size_t WordsFor(size_t ranks) { return (ranks + kBits - 1) / kBits; }

void SetBit(std::vector<uint64_t>& bits, Rank rank) {
  const auto place = static_cast<size_t>(rank.value());
  bits[place / kBits] |= uint64_t{1} << (place % kBits);
}

bool Differ(const Operation& a, const Operation& b) {
  return !DifferenceOf(a, Rank(0), b, Rank(1)).empty();
}

}  // namespace

size_t RollCall::MessageBytes(WorldSize world_size) {
  static_assert(std::is_trivially_copyable_v<Message> && sizeof(Message) % sizeof(uint64_t) == 0);
  return sizeof(Message) + WordsFor(static_cast<size_t>(world_size.value())) * sizeof(uint64_t);
}

RollCall::RollCall(OperationRunner& runner, const Layout& layout, Rank rank, const Clock& clock)
    : runner_(runner),
      rank_(rank),
      ranks_(static_cast<size_t>(layout.world_size())),
      clock_(clock) {
  const int32_t host = layout.HostOf(rank.value());
  const int32_t hosts = layout.host_count();
  const std::vector<int32_t>& neighbors = layout.RanksOn(host);
  if (neighbors[0] != rank.value()) {
    Add(in_, Rank(neighbors[0]), 0);
    Add(out_, Rank(neighbors[0]), 0);
    return;
  }
  members_ = neighbors.size() - 1;
  for (size_t i = 1; i < neighbors.size(); ++i) Add(in_, Rank(neighbors[i]), 0);
  for (int32_t step = 1; step < hosts; step *= 2) {
    Add(out_, Rank(layout.RanksOn((host + step) % hosts)[0]), in_.size());
    Add(in_, Rank(layout.RanksOn((host + hosts - step) % hosts)[0]), 0);
  }
  for (size_t i = 1; i < neighbors.size(); ++i) Add(out_, Rank(neighbors[i]), in_.size());
}

void RollCall::Add(std::vector<Way>& ways, Rank peer, size_t after) const {
  Way& way = ways.emplace_back();
  way.peer = peer;
  way.after = after;
  way.words = std::make_unique<uint64_t[]>(MessageBytes(WorldSize(static_cast<int32_t>(ranks_))) /
                                           sizeof(uint64_t));
}

void RollCall::Start(const Operation& mine) {
  known_ = Message();
  known_.first = {mine, rank_.value()};
  known_.first.operation.set_source({});  // addresses are nobody else's business
  known_.first.operation.set_target({});
  for (std::vector<Way>* ways : {&in_, &out_}) {
    for (Way& way : *ways) way.is_over = false;
    for (Way& way : *ways) way.awaited.clear();
  }
  looks_ = 0;
  next_look_ = clock_.Now() + kLook;
}

absl::StatusOr<bool> RollCall::Advance() {
  moved_ = false;
  for (Way& from : in_) RETURN_IF_ERROR(Receive(from));
  RETURN_IF_ERROR(Send());
  if (is_done()) return true;
  RETURN_IF_ERROR(TellIfLate());
  return false;
}

size_t RollCall::ways_over() const {
  const auto open =
      std::find_if(in_.begin(), in_.end(), [](const Way& way) { return !way.is_over; });
  return static_cast<size_t>(open - in_.begin());
}

bool RollCall::is_done() const {
  return ways_over() == in_.size() && std::all_of(out_.begin(), out_.end(), [](const Way& to) {
           return to.is_over && !to.is_in_flight;
         });
}

// No room for another operation in flight is no error: the way is tried again.
absl::StatusOr<bool> RollCall::Launch(OperationKind kind, Way& way) {
  Operation message;
  message.kind = kind;
  message.dtype = DType::kUInt8;
  message.count = MessageBytes(WorldSize(static_cast<int32_t>(ranks_)));
  message.peer = way.peer.value();
  message.tag = kRollCallTag;
  const Location location = Locate(way.words.get(), message.count);
  message.set_source(location);
  message.set_target(location);
  HostStream stream;
  const absl::StatusOr<Completion> launched = runner_.Launch(message, stream);
  if (absl::IsResourceExhausted(launched.status())) return false;
  RETURN_IF_ERROR(launched.status());
  way.completion = *launched;
  return way.is_in_flight = moved_ = true;
}

absl::StatusOr<bool> RollCall::IsFree(Way& way) {
  if (!way.is_in_flight) return true;
  const OperationRunner::State state = runner_.Query(way.completion);
  RETURN_IF_ERROR(state.status);
  if (!state.done) return false;
  way.is_in_flight = false;
  return moved_ = true;
}

absl::Status RollCall::Receive(Way& from) {
  while (!from.is_over) {
    const bool was_in_flight = from.is_in_flight;
    ASSIGN_OR_RETURN(const bool is_free, IsFree(from));
    if (!is_free) break;
    if (was_in_flight) {
      TakeIn(from);
      continue;
    }
    ASSIGN_OR_RETURN(const bool has_room, Launch(OperationKind::kRecv, from));
    if (!has_room) break;
  }
  return absl::OkStatus();
}

void RollCall::TakeIn(Way& from) {
  Message message;
  std::memcpy(static_cast<void*>(&message), from.words.get(), sizeof message);
  const uint64_t* const bits = from.words.get() + sizeof message / sizeof(uint64_t);
  from.awaited.assign(bits, bits + WordsFor(ranks_));
  from.is_over = message.is_last;
  Merge(message);
}

// `known_` and `message` hold what some ranks have launched; this makes it what all of them have.
void RollCall::Merge(const Message& message) {
  Message low = known_;
  Message high = message;
  if (low.first.rank > high.first.rank) std::swap(low, high);
  const bool differ = Differ(low.first.operation, high.first.operation);
  const Claim& other = differ ? high.first : high.other;
  if (low.other.rank == kNoPeer || (other.rank != kNoPeer && other.rank < low.other.rank)) {
    low.other = other;
  }
  // A mark of the shape that the lowest rank does not have, so that others are held against it.
  int32_t& mark = low.first.operation.tag;
  if (!differ && mark == 0) mark = high.first.operation.tag;
  known_ = low;
}

absl::Status RollCall::Send() {
  const size_t over = ways_over();
  for (Way& to : out_) {
    ASSIGN_OR_RETURN(const bool is_free, IsFree(to));
    if (!is_free || to.is_over || over < to.after) continue;
    to.awaited.assign(WordsFor(ranks_), 0);
    ASSIGN_OR_RETURN(to.is_over, Send(to, /*is_last=*/true));
  }
  return absl::OkStatus();
}

// False: there is no room for another operation in flight.
absl::StatusOr<bool> RollCall::Send(Way& to, bool is_last) {
  known_.is_last = is_last;
  std::memcpy(to.words.get(), &known_, sizeof known_);
  std::copy(to.awaited.begin(), to.awaited.end(),
            to.words.get() + sizeof known_ / sizeof(uint64_t));
  return Launch(OperationKind::kSend, to);
}

absl::Status RollCall::TellIfLate() {
  const absl::Time now = clock_.Now();
  if (now < next_look_) return absl::OkStatus();
  next_look_ = now + kLook;
  ++looks_;
  for (Way& to : out_) RETURN_IF_ERROR(TellOf(to));
  return absl::OkStatus();
}

// What cannot be told yet waits for the next look.
absl::Status RollCall::TellOf(Way& to) {
  if (to.is_over || to.is_in_flight) return absl::OkStatus();
  Bits awaited = AwaitedIn(to.after, /*silent_leaders=*/looks_ >= kLooksForLeaders);
  if (awaited == to.awaited) return absl::OkStatus();
  to.awaited = std::move(awaited);
  ASSIGN_OR_RETURN(const bool has_room, Send(to, /*is_last=*/false));
  if (!has_room) to.awaited.clear();
  return absl::OkStatus();
}

RollCall::Bits RollCall::AwaitedIn(size_t ways, bool silent_leaders) const {
  Bits awaited(WordsFor(ranks_));
  for (size_t i = 0; i < ways; ++i) {
    const Way& from = in_[i];
    if (from.is_over) continue;
    for (size_t word = 0; word < from.awaited.size(); ++word) awaited[word] |= from.awaited[word];
    if (from.awaited.empty() && (i < members_ || silent_leaders)) SetBit(awaited, from.peer);
  }
  return awaited;
}

absl::Status RollCall::Difference() const {
  const Claim& first = known_.first;
  const Claim& other = known_.other;
  if (other.rank == kNoPeer) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Describe(first.operation), ": ",
      DifferenceOf(first.operation, Rank(first.rank), other.operation, Rank(other.rank))));
}

std::vector<Rank> RollCall::Missing() const {
  const Bits awaited = AwaitedIn(in_.size(), /*silent_leaders=*/true);
  std::vector<Rank> missing;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    if (awaited[rank / kBits] >> (rank % kBits) & 1) missing.emplace_back(static_cast<int>(rank));
  }
  return missing;
}

}  // namespace pelton::hierarchy
