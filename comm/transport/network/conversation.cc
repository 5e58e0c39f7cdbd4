#include "comm/transport/network/conversation.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton::network {

absl::StatusOr<std::unique_ptr<Conversation>> Conversation::Create(Network& network,
                                                                   Members members) {
  std::unique_ptr<Conversation> conversation(new Conversation(network, std::move(members)));
  MutexLock lock(&network.mutex());
  ASSIGN_OR_RETURN(conversation->worker_,
                   network.MakeWorker(*conversation, conversation->members_.group().members));
  conversation->point_to_point_ =
      std::make_unique<PointToPoint>(conversation->members_, *conversation->worker_);
  return conversation;
}

Conversation::Conversation(Network& network, Members members)
    : network_(network),
      members_(std::move(members)),
      peers_(static_cast<size_t>(members_.size())) {
  for (int member = 0; member < members_.size(); ++member) {
    Peer& peer = peers_[static_cast<size_t>(member)];
    peer.has_greeted = peer.has_answered = peer.has_left = !members_.IsPeer(member);
  }
}

// The worker tells the operations of their end.
Conversation::~Conversation() {
  if (worker_ == nullptr) return;
  MutexLock lock(&mutex());
  if (point_to_point_ != nullptr) point_to_point_->DropArrivals();
  worker_->Close();
  worker_.reset();
}

absl::StatusOr<std::string> Conversation::AcceptFrom(const std::set<uint32_t>& hosts) {
  MutexLock lock(&mutex());
  RETURN_IF_ERROR(worker_->AcceptFrom(hosts));
  return worker_->address();
}

absl::Status Conversation::Greet(const std::vector<std::string>& addresses, absl::Time deadline) {
  const absl::Status met = MeetAll(addresses, deadline);
  if (met.ok()) return met;
  // Some peers may have met all ranks already, and would wait for operations that this rank never
  // launches.
  MutexLock lock(&mutex());
  Header like;
  const std::string text = EncodeReason(met, &like);
  like.type = MessageType::kAbort;
  PostAll(like, text);
  return met;
}

absl::Status Conversation::MeetAll(const std::vector<std::string>& addresses, absl::Time deadline) {
  {
    MutexLock lock(&mutex());
    RETURN_IF_ERROR(ConnectAll(addresses));
  }
  while (true) {
    {
      MutexLock lock(&mutex());
      ASSIGN_OR_RETURN(const bool is_done, AdvanceGreeting(deadline));
      if (is_done) return worker_->StopListening();
    }
    RETURN_IF_ERROR(CheckInterrupt());
    sched_yield();
  }
}

absl::Status Conversation::ConnectAll(const std::vector<std::string>& addresses) {
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (!members_.IsPeer(peer)) continue;
    RETURN_IF_ERROR(worker_->Connect(peer, addresses[static_cast<size_t>(peer)]));
    worker_->Post(peer, members_.MakeHeader(MessageType::kHello, peer));
    // It came on a connection that is shared, when this rank did not know yet where to answer.
    if (peers_[static_cast<size_t>(peer)].has_greeted) Answer(peer);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Conversation::AdvanceGreeting(absl::Time deadline) {
  worker_->Progress();
  RETURN_IF_ERROR(worker_->Trouble());
  const absl::Status missing = Missing();
  // Not Flush: that may wait for a peer which has left here and does not progress any more.
  if (missing.ok() && worker_->IsPosted()) return true;
  RETURN_IF_ERROR(aborted_);
  const bool is_over = Clock::Real().Now() >= deadline;
  if (!missing.ok() && (is_over || !absl::IsDeadlineExceeded(missing))) return missing;
  if (is_over) return absl::DeadlineExceededError("sending the greetings");
  return false;
}

absl::Status Conversation::Missing() const {
  std::vector<int32_t> missing;
  for (int peer = 0; peer < members_.size(); ++peer) {
    const Peer& state = peers_[static_cast<size_t>(peer)];
    if (state.has_greeted && state.has_answered) continue;
    const int32_t rank = members_.WorldRankOf(peer).value();
    if (!state.loss.ok()) return Annotate(state.loss, absl::StrCat("rank ", rank, " is lost"));
    missing.push_back(rank);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("rank(s) ", absl::StrJoin(missing, ", "), " have not connected"));
}

void Conversation::PostAll(const Header& like, const std::string& note) {
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (!members_.IsPeer(peer) || !LossOf(peer).ok()) continue;
    Header header = members_.MakeHeader(like.type, peer);
    header.flags = like.flags;
    header.operation.count = like.operation.count;
    worker_->Post(peer, header, note);
  }
}

bool Conversation::SayBye() {
  if (!std::exchange(has_said_bye_, true)) {
    PostAll(members_.MakeHeader(MessageType::kBye, members_.rank()));
  }
  worker_->Progress();
  return worker_->Flush();
}

bool Conversation::IsOver() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.has_left || !peer.loss.ok(); });
}

bool Conversation::Receive(const Header& header, const Payload& payload) {
  const bool is_note = header.type != MessageType::kData;
  const bool is_fit = !is_note || (!payload.is_rendezvous && payload.size_bytes <= kMaxNoteBytes);
  if (!is_fit || !members_.IsGenuine(header)) return false;
  Peer& peer = peers_[header.source];
  switch (header.type) {
    case MessageType::kData:
      return point_to_point_->Arrive(header, payload);
    case MessageType::kCredit:
    case MessageType::kAck:
    case MessageType::kRefusal:
      point_to_point_->Answer(header);
      return false;
    case MessageType::kAbort: {
      const absl::string_view text(static_cast<const char*>(payload.data), payload.size_bytes);
      const Rank rank = members_.WorldRankOf(static_cast<int>(header.source));
      if (aborted_.ok()) aborted_ = DecodeReason(header, text, rank);
      return false;
    }
    case MessageType::kBye:
      peer.has_left = has_gaps_ = true;
      return false;
    case MessageType::kHello:
      (header.flags == kIsAnswer ? peer.has_answered : peer.has_greeted) = true;
      if (header.flags != kIsAnswer) Answer(static_cast<int>(header.source));
      return false;
    case MessageType::kValue:
      break;
  }
  return false;
}

void Conversation::Answer(int peer) {
  Header answer = members_.MakeHeader(MessageType::kHello, peer);
  answer.flags = kIsAnswer;
  worker_->Post(peer, answer);
}

void Conversation::Lose(int peer, const absl::Status& why) {
  absl::Status& loss = peers_[static_cast<size_t>(peer)].loss;
  if (loss.ok()) loss = why;
  has_gaps_ = true;
}

}  // namespace pelton::network
