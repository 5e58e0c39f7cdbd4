#include "comm/transport/shm/point_to_point.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "comm/transport/operation_check.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton::shm {
namespace {

constexpr uint64_t kStepBytes = uint64_t{256} << 10;

uint64_t BytesOf(const Operation& operation) { return operation.count * SizeOf(operation.dtype); }

}  // namespace

PointToPoint::PointToPoint(const Context& context)
    : context_(context),
      posted_(context.world_size()),
      free_entries_(context.world_size()),
      unused_entries_(context.world_size()),
      seen_(context.world_size()),
      unmatched_(context.world_size()),
      is_blocked_(context.world_size()) {
  pending_.reserve(limits::kMaxOperationsInFlight);
}

PointToPoint::~PointToPoint() {
  for (const Pending& pending : pending_) TakeBackCopy(pending);
}

void PointToPoint::TakeBackCopy(const Pending& pending) const {
  if (pending.copy == nullptr) return;
  context_.links.EndLoan(pending.copy->id(), context_.world_ranks[pending.operation.peer]);
}

absl::Status PointToPoint::Start(const Operation& operation, uint64_t ticket, std::byte* memory) {
  Pending pending;
  pending.operation = operation;
  pending.ticket = ticket;
  pending.memory = memory;
  const bool is_private_send =
      operation.kind == OperationKind::kSend && operation.source_region == kPrivateRegion;
  const uint64_t bytes = BytesOf(operation);
  if (is_private_send && bytes > 0 &&
      !context_.links.reads_us(context_.world_ranks[operation.peer])) {
    ASSIGN_OR_RETURN(pending.copy, Region::Create(bytes, "send"));
    std::memcpy(pending.copy->data(), memory, bytes);
    context_.links.Lend(*pending.copy, context_.world_ranks[operation.peer]);
    pending.operation.set_source({pending.copy->id(), 0});
  }
  pending_.push_back(std::move(pending));
  NoteOldest();
  return absl::OkStatus();
}

absl::StatusOr<bool> PointToPoint::Step(OnDone on_done) {
  bool moved = false;
  // Looked at once per step: a post that came in between must not pass by the oldest receive.
  LookForPosts();
  std::fill(is_blocked_.begin(), is_blocked_.end(), false);
  for (size_t i = 0; i < pending_.size();) {
    Pending& pending = pending_[i];
    absl::Status status;
    ASSIGN_OR_RETURN(const Outcome outcome, pending.operation.kind == OperationKind::kSend
                                                ? StepSend(pending, &status)
                                                : StepReceive(pending, &status));
    moved |= outcome != Outcome::kWaiting;
    if (outcome != Outcome::kDone) {
      ++i;
      continue;
    }
    TakeBackCopy(pending);
    on_done(pending.ticket, status);
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    NoteOldest();
  }
  return moved;
}

void PointToPoint::Cancel() {
  for (const Pending& pending : pending_) TakeBackCopy(pending);
  pending_.clear();
  NoteOldest();
}

bool PointToPoint::Needs(int peer) const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [peer](const Pending& pending) { return pending.operation.peer == peer; });
}

void PointToPoint::NoteOldest() {
  oldest_peer_.store(pending_.empty() ? kNoPeer : pending_.front().operation.peer,
                     std::memory_order_relaxed);
}

std::optional<uint16_t> PointToPoint::TakeEntry(int peer) {
  std::vector<uint16_t>& free = free_entries_[peer];
  if (free.empty()) {
    if (unused_entries_[peer] == kChannelDepth) return std::nullopt;
    return unused_entries_[peer]++;
  }
  const uint16_t entry = free.back();
  free.pop_back();
  return entry;
}

absl::StatusOr<PointToPoint::Outcome> PointToPoint::StepSend(Pending& send, absl::Status* status) {
  const int peer = send.operation.peer;
  if (!send.is_matched) {
    const std::optional<uint16_t> taken = is_blocked_[peer] ? std::nullopt : TakeEntry(peer);
    if (!taken) {
      is_blocked_[peer] = true;  // later sends to it must not overtake
      return Outcome::kWaiting;
    }
    send.entry = *taken;
    send.operation.sequence = posted_[peer] + 1;
    send.is_matched = true;
    ChannelTo(peer).Post(posted_[peer]++, send.entry, send.operation);
    context_.Ring(peer);
    return Outcome::kMoved;
  }
  const Channel& channel = ChannelTo(peer);
  switch (channel.AnswerIn(send.entry)) {
    case Channel::kPending:
      return Outcome::kWaiting;
    case Channel::kReceived:
      free_entries_[peer].push_back(send.entry);
      return Outcome::kDone;
    default:
      free_entries_[peer].push_back(send.entry);
      *status = absl::InvalidArgumentError(
          absl::StrCat(Describe(send.operation), ": ",
                       DifferenceOfPair(send.operation, Rank(context_.rank),
                                        channel.ReplyIn(send.entry), Rank(peer))));
      return Outcome::kDone;
  }
}

bool PointToPoint::LookForPosts() {
  bool has_found = false;
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    const Channel& channel = ChannelFrom(peer);
    const uint64_t posted = channel.posted();
    for (; seen_[peer] < posted; ++seen_[peer]) {
      unmatched_[peer].push_back(channel.EntryOf(seen_[peer]));
      has_found = true;
    }
  }
  return has_found;
}

bool PointToPoint::HasPost(int peer, int32_t tag) const {
  const Channel& channel = ChannelFrom(peer);
  const std::vector<uint16_t>& unmatched = unmatched_[peer];
  return std::any_of(unmatched.begin(), unmatched.end(),
                     [&](uint16_t entry) { return channel.PostIn(entry).tag == tag; });
}

// Receives in flight come first: Step has offered them every post that was looked at.
int PointToPoint::FindSender(int32_t tag) {
  if (is_idle()) LookForPosts();
  const int size = context_.world_size();
  for (int i = 0; i < size; ++i) {
    const int peer = (next_sender_ + i) % size;
    if (!HasPost(peer, tag)) continue;
    next_sender_ = (peer + 1) % size;
    is_sought_ = false;
    return peer;
  }
  is_sought_ = true;
  return kNoPeer;
}

// Finds the oldest post with the receive's tag that no earlier receive has taken.
bool PointToPoint::Match(Pending& receive) {
  const int peer = receive.operation.peer;
  const Channel& channel = ChannelFrom(peer);
  std::vector<uint16_t>& unmatched = unmatched_[peer];
  for (auto entry = unmatched.begin(); entry != unmatched.end(); ++entry) {
    if (channel.PostIn(*entry).tag != receive.operation.tag) continue;
    receive.entry = *entry;
    receive.is_matched = true;
    unmatched.erase(entry);
    return true;
  }
  return false;
}

void PointToPoint::Answer(Pending& receive, Channel::Answer answer) {
  ChannelFrom(receive.operation.peer).AnswerPost(receive.entry, answer, receive.operation);
  receive.from = Reach();
  context_.Ring(receive.operation.peer);
}

absl::StatusOr<PointToPoint::Outcome> PointToPoint::StepReceive(Pending& receive,
                                                                absl::Status* status) {
  const int peer = receive.operation.peer;
  if (!receive.is_matched && !Match(receive)) return Outcome::kWaiting;
  const Operation& send = ChannelFrom(peer).PostIn(receive.entry);
  const uint64_t bytes = BytesOf(receive.operation);
  if (receive.received_bytes == 0) {
    const std::string difference =
        DifferenceOfPair(send, Rank(peer), receive.operation, Rank(context_.rank));
    if (!difference.empty()) {
      receive.operation.sequence = send.sequence;
      *status =
          absl::InvalidArgumentError(absl::StrCat(Describe(receive.operation), ": ", difference));
      Answer(receive, Channel::kDifferent);
      return Outcome::kDone;
    }
    absl::StatusOr<Reach> from = ReachOf(context_, peer, send.source(), bytes);
    if (absl::IsNotFound(from.status()))
      return Outcome::kWaiting;  // its registration is on its way
    ASSIGN_OR_RETURN(receive.from, std::move(from));
  }
  const uint64_t step = std::min(kStepBytes, bytes - receive.received_bytes);
  ASSIGN_OR_RETURN(const bool is_read, Reading(context_).TryFrom(peer, [&] {
    return receive.from.Read(receive.received_bytes, receive.memory + receive.received_bytes, step);
  }));
  if (!is_read) return Outcome::kWaiting;
  receive.received_bytes += step;
  if (receive.received_bytes < bytes) return Outcome::kMoved;
  Answer(receive, Channel::kReceived);
  return Outcome::kDone;
}

}  // namespace pelton::shm
