#include "comm/window/peer_processes.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/control/host_identity.h"
#include "comm/transport/shm/remote_memory.h"
#include "core/actor/wait_hook.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// All ranks' pieces, one after the other; the same size everywhere.
absl::Status GatherBytes(Communicator& communicator, const std::string& mine, std::string& all,
                         const MovingDeadline& deadline) {
  std::string own = mine;  // Tensor has no constant memory
  all.resize(mine.size() * static_cast<size_t>(communicator.world_size().value()));
  ASSIGN_OR_RETURN(const Completion completion,
                   AllGather(communicator, {own.data(), own.size(), DType::kUInt8},
                             {all.data(), all.size(), DType::kUInt8}));
  return Await(communicator, completion, deadline.At(WaitClock().Now()), deadline.standstill());
}

uint64_t PidNamespace() {
  struct stat file = {};
  return stat("/proc/self/ns/pid", &file) == 0 ? file.st_ino : 0;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExchangeTexts(Communicator& communicator,
                                                       const std::string& mine,
                                                       const MovingDeadline& deadline) {
  uint64_t length = mine.size();
  std::string lengths;
  RETURN_IF_ERROR(GatherBytes(communicator, {reinterpret_cast<char*>(&length), sizeof length},
                              lengths, deadline));
  std::vector<uint64_t> sizes(lengths.size() / sizeof length);
  std::memcpy(sizes.data(), lengths.data(), lengths.size());
  const uint64_t room = *std::max_element(sizes.begin(), sizes.end());
  if (room > (uint64_t{1} << 30)) return absl::InvalidArgumentError("a rank says too much");
  std::string padded = mine;
  padded.resize(room);
  std::string all;
  if (room > 0) RETURN_IF_ERROR(GatherBytes(communicator, padded, all, deadline));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    texts.push_back(all.substr(rank * room, sizes[rank]));
  }
  return texts;
}

absl::Status AgreeOnStatus(Communicator& communicator, const absl::Status& mine,
                           const MovingDeadline& deadline) {
  std::string text;
  if (!mine.ok()) {
    text = absl::StrCat(std::string(1, static_cast<char>(mine.code())), mine.message());
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   ExchangeTexts(communicator, text, deadline));
  if (!mine.ok() &&
      std::count(texts.begin(), texts.end(), text) == static_cast<ptrdiff_t>(texts.size())) {
    return mine;  // what all say alike is said once
  }
  absl::StatusCode code = absl::StatusCode::kOk;
  std::vector<std::string> failures;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    if (failures.empty()) code = static_cast<absl::StatusCode>(texts[rank][0]);
    failures.push_back(absl::StrCat("rank ", rank, ": ", texts[rank].substr(1)));
  }
  if (failures.empty()) return absl::OkStatus();
  return absl::Status(code, absl::StrJoin(failures, "; "));
}

// Plain numbers: it travels as bytes.
struct PeerProcesses::Card {
  int64_t pid = 0;
  uint64_t pid_namespace = 0;
  uint64_t probe_address = 0;  // of `probe`, in private memory
  uint64_t probe = 0;
  uint64_t permits_reading = 1;  // PELTON_PTRACE=0 forbids it
  char host[320] = {};           // boot id and label

  // Whether the two see each other's processes.
  bool IsNear(const Card& other) const {
    return std::strncmp(host, other.host, sizeof host) == 0 && pid_namespace == other.pid_namespace;
  }
};

absl::StatusOr<PeerProcesses::Peer> PeerProcesses::Look(const Card& mine, const Card& theirs) {
  Peer peer;
  peer.is_far = !mine.IsNear(theirs);
  if (peer.is_far) return peer;
  peer.pid = static_cast<pid_t>(theirs.pid);
  peer.may_read = theirs.permits_reading != 0;
  if (peer.pid == getpid()) return peer;
  peer.process = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  if (!peer.process.is_open()) {
    return absl::UnavailableError(
        absl::StrCat("opening process ", peer.pid, ": ", ErrorText(errno)));
  }
  uint64_t read = 0;
  peer.may_read = theirs.permits_reading != 0 &&
                  shm::ReadMemory(peer.pid, theirs.probe_address,
                                  reinterpret_cast<std::byte*>(&read), sizeof read)
                      .ok() &&
                  read == theirs.probe;
  return peer;
}

PeerProcesses::Card PeerProcesses::CardOf(const uint64_t& probe, const std::string& host_label) {
  Card card;
  const std::string host = absl::StrCat(HostIdentity::OfThisProcess().boot_id, "/", host_label);
  card.pid = getpid();
  card.pid_namespace = PidNamespace();
  card.probe = probe;
  card.probe_address = reinterpret_cast<uintptr_t>(&probe);
  const char* const permission = std::getenv("PELTON_PTRACE");
  card.permits_reading = permission == nullptr || std::string(permission) != "0" ? 1 : 0;
  host.copy(card.host, sizeof card.host - 1);
  return card;
}

absl::StatusOr<std::shared_ptr<const PeerProcesses>> PeerProcesses::Meet(
    Communicator& communicator, const MovingDeadline& deadline, const std::string& host_label) {
  if (host_label.size() > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("host_label: has ", host_label.size(), " bytes, 256 at most"));
  }
  const uint64_t probe =
      static_cast<uint64_t>(getpid()) * 0x9E3779B97F4A7C15 + communicator.id().value();
  const Card mine = CardOf(probe, host_label);
  ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      ExchangeTexts(communicator, {reinterpret_cast<const char*>(&mine), sizeof mine}, deadline));
  std::vector<Card> cards(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].size() != sizeof mine) return absl::InternalError("a card of another size");
    std::memcpy(&cards[rank], texts[rank].data(), sizeof mine);
    // No more processes than have to: the kernel keeps one name, or lets in all of this user's.
    if (mine.IsNear(cards[rank]) && cards[rank].pid != mine.pid) {
      shm::AllowReaders(static_cast<pid_t>(cards[rank].pid));
    }
  }
  // Everybody has let the others in before anybody tries.
  RETURN_IF_ERROR(AgreeOnStatus(communicator, absl::OkStatus(), deadline));
  auto met = std::make_shared<PeerProcesses>();
  absl::Status wrong;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    absl::StatusOr<Peer> peer = Look(mine, cards[rank]);
    if (!peer.ok() && wrong.ok()) {
      wrong = Annotate(peer.status(), absl::StrCat("windows: rank ", rank));
    }
    met->peers_.push_back(peer.ok() ? *std::move(peer) : Peer());
  }
  // Also holds `probe` until everybody has read it.
  RETURN_IF_ERROR(AgreeOnStatus(communicator, wrong, deadline));
  return met;
}

std::shared_ptr<const PeerProcesses> PeerProcesses::AllHere(
    Rank rank, const std::vector<int32_t>& host_of, std::function<absl::Status(Rank peer)> check) {
  auto here = std::make_shared<PeerProcesses>();
  here->check_ = std::move(check);
  for (const int32_t host : host_of) {
    Peer& peer = here->peers_.emplace_back();
    peer.pid = getpid();
    peer.is_far = host != host_of[Index(rank)];
  }
  return here;
}

bool PeerProcesses::has_far_ranks() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.is_far; });
}

absl::Status PeerProcesses::Check(Rank peer) const {
  const Peer& other = peers_[Index(peer)];
  if (check_ != nullptr) return check_(peer);
  if (!other.process.is_open()) return absl::OkStatus();
  pollfd ended = {other.process.get(), POLLIN, 0};
  if (poll(&ended, 1, 0) <= 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("rank ", peer.value(), " (process ", other.pid, ") has ended"));
}

}  // namespace pelton
