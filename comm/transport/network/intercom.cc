#include "comm/transport/network/intercom.h"

#include <sched.h>

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/control/bind_address.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton::network {
namespace {

// No communicator has this number: the intercom messages have keys of their own.
constexpr CommunicatorId kIntercom(std::numeric_limits<uint32_t>::max());
constexpr size_t kDigestBytes = 32;
// Messages kept for communicators that this rank has not opened yet; far beyond what ranks in good
// order send.
constexpr size_t kMaxKept = size_t{1} << 16;
constexpr int kRoundsPerLook = 16;

std::string SignAddress(const std::string& token, int rank, const std::string& address) {
  return Sign(token, absl::StrCat("pelton network address ", rank, " ", address));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Intercom>> Intercom::Make(Network& network,
                                                         const TransportOptions& options) {
  std::unique_ptr<Intercom> intercom(new Intercom(network, options));
  RETURN_IF_ERROR(intercom->Start(network, options));
  return intercom;
}

Intercom::Intercom(Network& network, const TransportOptions& options)
    : job_token_(options.job_token),
      world_(options.job_token, kIntercom, Group::World(options.world_size), options.rank,
             options.near),
      mutex_(network.mutex()),
      losses_(static_cast<size_t>(options.world_size.value())),
      has_left_(static_cast<size_t>(options.world_size.value())),
      unanswered_(static_cast<size_t>(options.world_size.value())) {}

Intercom::~Intercom() {
  MutexLock lock(&mutex_);
  if (worker_ != nullptr) worker_->Close();
}

absl::Status Intercom::Start(Network& network, const TransportOptions& options) {
  {
    MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(worker_, network.MakeWorker(*this, world_.group().members));
    ASSIGN_OR_RETURN(const uint32_t host, ResolveIpv4(network.interface()));
    std::string own(reinterpret_cast<const char*>(&host), sizeof host);
    own += worker_->address();
    const std::string digest = SignAddress(job_token_, options.rank.value(), own);
    ASSIGN_OR_RETURN(const std::vector<std::string> all,
                     options.bootstrap->AllGather(
                         "network", absl::WebSafeBase64Escape(digest + own), options.deadline));
    for (int rank = 0; rank < options.world_size.value(); ++rank) {
      RETURN_IF_ERROR(AddPeerAddress(rank, all[static_cast<size_t>(rank)]));
    }
    RETURN_IF_ERROR(worker_->AcceptFrom(hosts_));
  }
  RETURN_IF_ERROR(Exchange(world_, "", options.deadline).status());
  MutexLock lock(&mutex_);
  return worker_->StopListening();
}

absl::Status Intercom::AddPeerAddress(int rank, const std::string& text) {
  std::string value;
  uint32_t host = 0;
  const bool is_text = absl::WebSafeBase64Unescape(text, &value);
  const bool is_long_enough = is_text && value.size() > kDigestBytes + sizeof host;
  const std::string own = is_long_enough ? value.substr(kDigestBytes) : "";
  if (!is_long_enough || value != SignAddress(job_token_, rank, own) + own) {
    return absl::UnauthenticatedError(
        absl::StrCat("network: rank ", rank, " does not hold the job's token"));
  }
  std::memcpy(&host, own.data(), sizeof host);
  hosts_.insert(host);
  addresses_.push_back(own.substr(sizeof host));
  return absl::OkStatus();
}

absl::Status Intercom::Connect(int rank) {
  if (worker_->IsConnected(rank)) return absl::OkStatus();
  return worker_->Connect(rank, addresses_[static_cast<size_t>(rank)]);
}

absl::Status Intercom::SendValue(const Members& members, const std::string& value) {
  for (const Rank member : members.group().members) {
    const int rank = member.value();
    if (!world_.IsPeer(rank)) continue;
    RETURN_IF_ERROR(Connect(rank));
    Header header = world_.MakeHeader(MessageType::kValue, rank);
    header.operation.communicator = members.id();
    header.operation.generation = members.generation();
    worker_->Post(rank, header, value);
    ++unanswered_[static_cast<size_t>(rank)];
  }
  return absl::OkStatus();
}

absl::Status Intercom::Missing(const Members& members) {
  std::vector<int> missing;
  for (const Rank member : members.group().members) {
    const int rank = member.value();
    if (!world_.IsPeer(rank)) continue;
    const auto found = values_.find({members.id().value(), members.generation().value(), rank});
    const bool has_answered = unanswered_[static_cast<size_t>(rank)] == 0;
    if (has_answered && found != values_.end() && !found->second.empty()) continue;
    if (has_left_[static_cast<size_t>(rank)]) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, " has left the job"));
    }
    const absl::Status& loss = losses_[static_cast<size_t>(rank)];
    if (!loss.ok()) return Annotate(loss, absl::StrCat("rank ", rank, " is lost"));
    missing.push_back(rank);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("rank(s) ", absl::StrJoin(missing, ", "), " have not opened it"));
}

std::vector<std::string> Intercom::TakeValues(const Members& members, const std::string& own) {
  std::vector<std::string> all;
  for (const Rank member : members.group().members) {
    if (!world_.IsPeer(member.value())) {
      all.push_back(member.value() == world_.rank() ? own : "");
      continue;
    }
    const auto found =
        values_.find({members.id().value(), members.generation().value(), member.value()});
    all.push_back(std::move(found->second.front()));
    found->second.pop_front();
    if (found->second.empty()) values_.erase(found);
  }
  return all;
}

bool Intercom::ArePosted(const Members& members) const {
  for (const Rank member : members.group().members) {
    if (!worker_->IsPostedTo(member.value())) return false;
  }
  return true;
}

absl::StatusOr<std::vector<std::string>> Intercom::Exchange(const Members& members,
                                                            const std::string& value,
                                                            absl::Time deadline) {
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(SendValue(members, value));
  }
  while (true) {
    {
      MutexLock lock(&mutex_);
      const bool moved = worker_->Progress();
      RETURN_IF_ERROR(worker_->Trouble());
      const absl::Status missing = Missing(members);
      if (missing.ok() && ArePosted(members)) return TakeValues(members, value);
      const bool is_over = Clock::Real().Now() >= deadline;
      if (!missing.ok() && (is_over || !absl::IsDeadlineExceeded(missing))) return missing;
      if (is_over) return absl::DeadlineExceededError("sending an address");
      if (moved) continue;
    }
    RETURN_IF_ERROR(CheckInterrupt());
    sched_yield();
  }
}

void Intercom::TellAbort(const Members& members, const absl::Status& reason, uint8_t flags) {
  mutex_.AssertHeld();
  for (const Rank member : members.group().members) {
    const int rank = member.value();
    if (!world_.IsPeer(rank) || !losses_[static_cast<size_t>(rank)].ok()) continue;
    Header header = world_.MakeHeader(MessageType::kAbort, rank);
    header.flags = flags;
    header.operation.communicator = members.id();
    header.operation.generation = members.generation();
    const std::string text = EncodeReason(reason, &header);
    worker_->Post(rank, header, text);
  }
}

bool Intercom::IsTold() {
  mutex_.AssertHeld();
  worker_->Progress();
  return worker_->Flush();
}

bool Intercom::SayGoodbye() {
  MutexLock lock(&mutex_);
  const bool is_first = !std::exchange(has_said_goodbye_, true);
  for (int rank = 0; is_first && rank < world_.size(); ++rank) {
    if (!world_.IsPeer(rank) || !losses_[static_cast<size_t>(rank)].ok()) continue;
    worker_->Post(rank, world_.MakeHeader(MessageType::kBye, rank));
  }
  worker_->Progress();
  return worker_->Flush() && worker_->HasArrived();
}

absl::Status Intercom::NewsOf(const Members& members) {
  mutex_.AssertHeld();
  for (int i = 0; i < kRoundsPerLook && worker_->Progress(); ++i) {
  }
  absl::Status loss;
  for (const Rank member : members.group().members) {
    const int rank = member.value();
    const auto found = aborts_.find({members.id().value(), members.generation().value(), rank});
    if (found != aborts_.end()) return found->second;
    const absl::Status& lost = losses_[static_cast<size_t>(rank)];
    if (has_left_[static_cast<size_t>(rank)]) continue;
    if (!lost.ok() && loss.ok()) loss = Annotate(lost, absl::StrCat("rank ", rank, " is lost"));
  }
  return loss;
}

bool Intercom::Receive(const Header& header, const Payload& payload) {
  mutex_.AssertHeld();
  if (payload.is_rendezvous || payload.size_bytes > kMaxNoteBytes || !world_.IsGenuine(header) ||
      values_.size() + aborts_.size() > kMaxKept) {
    return false;
  }
  const auto rank = static_cast<int>(header.source);
  const Key key{header.operation.communicator.value(), header.operation.generation.value(), rank};
  const std::string text(static_cast<const char*>(payload.data), payload.size_bytes);
  if (header.type == MessageType::kValue && header.flags == kIsAnswer) {
    if (unanswered_[header.source] > 0) --unanswered_[header.source];
  } else if (header.type == MessageType::kValue) {
    AnswerTo(rank);
    aborts_.erase(key);  // of an earlier communicator of that number
    values_[key].push_back(text);
  } else if (header.type == MessageType::kBye) {
    has_left_[header.source] = true;
  } else if (header.type == MessageType::kAbort) {
    aborts_.emplace(key, DecodeReason(header, text, Rank(rank)));
  }
  return false;
}

void Intercom::AnswerTo(int rank) {
  const absl::Status connected = Connect(rank);
  if (!connected.ok()) losses_[static_cast<size_t>(rank)] = connected;
  Header answer = world_.MakeHeader(MessageType::kValue, rank);
  answer.flags = kIsAnswer;
  worker_->Post(rank, answer);
}

void Intercom::Lose(int peer, const absl::Status& why) {
  mutex_.AssertHeld();
  losses_[static_cast<size_t>(peer)] = why;
}

}  // namespace pelton::network
