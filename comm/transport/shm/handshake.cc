#include "comm/transport/shm/handshake.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/control/host_identity.h"
#include "comm/transport/shm/mapping.h"
#include "comm/transport/shm/remote_memory.h"
#include "comm/transport/shm/socket.h"
#include "core/base/fork.h"
#include "core/base/status.h"

namespace pelton::shm {
namespace {

// So many connections that say nothing may wait beside those of the ranks; then the oldest goes.
constexpr size_t kMaxSilent = 64;
constexpr int kNoRank = -1;

uint64_t RandomNonce() {
  uint64_t nonce = 0;
  while (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) {
  }
  return nonce;
}

// Takes the same time wherever the first difference is.
bool SameToken(absl::string_view a, absl::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

// One run of the handshake on one rank. Threads: one. Owns: what it hands over in the end.
class Handshake {
 public:
  explicit Handshake(const TransportOptions& options)
      : options_(options),
        rank_(options.rank.value()),
        world_size_(options.world_size.value()),
        peers_(world_size_),
        hellos_(world_size_),
        proofs_(world_size_),
        is_through_(world_size_),
        private_nonce_(std::make_unique<uint64_t>(RandomNonce())) {
    for (int peer = 0; peer < world_size_; ++peer) {
      peers_[peer].name = options.names.empty() ? peer : options.names[peer].value();
    }
  }

  absl::StatusOr<std::vector<Peer>> Run() {
    peers_[rank_].pid = getpid();
    peers_[rank_].reads_us = true;
    if (world_size_ == 1) return std::move(peers_);
    const absl::Status met = Meet();
    if (!met.ok()) {
      TellOthers(met);
      return met;
    }
    return std::move(peers_);
  }

 private:
  absl::Status Meet() {
    if (world_size_ > 2) AllowReaders();  // the kernel can name one process, not several
    RETURN_IF_ERROR(MakeProof());
    const std::string address = RandomAddress();
    const int backlog = world_size_ + static_cast<int>(kMaxSilent);
    ASSIGN_OR_RETURN(Descriptor listener, Listen(address, backlog));
    RETURN_IF_ERROR(ExchangeAddresses(address));
    RETURN_IF_ERROR(ConnectToLower());
    RETURN_IF_ERROR(AcceptHigher(listener.get()));
    RETURN_IF_ERROR(AwaitAll(hellos_, "has not greeted"));
    for (int peer = 0; peer < world_size_; ++peer) RETURN_IF_ERROR(SendProof(peer));
    RETURN_IF_ERROR(AwaitAll(proofs_, "has sent no proof"));
    for (int peer = 0; peer < world_size_; ++peer) RETURN_IF_ERROR(CheckProof(peer));
    return absl::OkStatus();
  }

  // Why this rank ends before they have met, so that the others name whoever is to blame, and not
  // this one, whose sockets are closed next.
  void TellOthers(const absl::Status& reason) const {
    Frame frame;
    frame.type = Frame::kFailed;
    frame.rank = rank_;
    const absl::string_view text = CutToFit(reason.message(), kMaxTextBytes);
    for (const Peer& peer : peers_) {
      if (peer.socket.is_open()) Send(peer.socket.get(), frame, text).IgnoreError();
    }
  }

  // The ranks from which more is to come.
  std::vector<int> Speaking() const {
    std::vector<int> speaking;
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peers_[peer].socket.is_open() && !is_through_[peer]) speaking.push_back(peer);
    }
    return speaking;
  }
  static bool HasCome(const Message& message) { return message.frame.type != 0; }

  // Until every other rank's message is among `messages`. Whichever rank ends meanwhile ends this
  // wait, too, because the others may be waiting for that one.
  absl::Status AwaitAll(const std::vector<Message>& messages, absl::string_view missing) {
    while (true) {
      int awaited = kNoRank;
      for (int peer = world_size_; peer-- > 0;) {
        if (peer != rank_ && !HasCome(messages[peer])) awaited = peer;
      }
      if (awaited == kNoRank) return absl::OkStatus();
      const std::vector<int> speaking = Speaking();
      std::vector<int> sockets;
      for (const int peer : speaking) sockets.push_back(peers_[peer].socket.get());
      const absl::StatusOr<std::vector<bool>> readable = AwaitReadable(sockets, options_.deadline);
      if (absl::IsDeadlineExceeded(readable.status())) {
        return About(awaited, absl::DeadlineExceededError(missing));
      }
      RETURN_IF_ERROR(readable.status());
      for (size_t i = 0; i < speaking.size(); ++i) {
        if ((*readable)[i]) RETURN_IF_ERROR(TakeIn(speaking[i]));
      }
    }
  }

  // What `peer` has sent. What it says when it has met all others, and is through, is the links' to
  // read; its end after its proof does no harm to this rank. Errors: it has ended before that, or
  // says why it has.
  absl::Status TakeIn(int peer) {
    while (!is_through_[peer]) {
      if (HasCome(proofs_[peer])) {
        const absl::StatusOr<Frame> next = Peek(peers_[peer].socket.get());
        if (absl::IsDeadlineExceeded(next.status())) return absl::OkStatus();
        is_through_[peer] = !next.ok() || next->type != Frame::kFailed;
        if (is_through_[peer]) break;
      }
      absl::StatusOr<Message> message = Receive(peers_[peer].socket.get(), absl::InfinitePast());
      if (absl::IsDeadlineExceeded(message.status())) return absl::OkStatus();
      if (absl::IsUnavailable(message.status()) && !HasCome(hellos_[peer])) {
        return absl::PermissionDeniedError(
            absl::StrCat("shm: rank ", NameOf(peer), " refused the connection of rank ",
                         NameOf(rank_), ", or has ended; see what it says"));
      }
      if (!message.ok()) return About(peer, message.status());
      if (message->frame.type == Frame::kFailed) {
        return About(peer, absl::AbortedError(absl::StrCat("has ended: ", message->payload)));
      }
      if (!HasCome(hellos_[peer])) {
        RETURN_IF_ERROR(About(peer, CheckHello(*message)));
        hellos_[peer] = *std::move(message);
      } else {
        proofs_[peer] = *std::move(message);
      }
    }
    return absl::OkStatus();
  }
  // `sent` to `peer`, or, where that has ended, what it said before.
  absl::Status AfterSending(int peer, const absl::Status& sent) {
    if (!sent.ok()) RETURN_IF_ERROR(TakeIn(peer));
    return About(peer, sent);
  }

  absl::Status MakeProof() {
    shared_nonce_ = RandomNonce();
    const size_t bytes = (1 + world_size_) * sizeof(uint64_t);
    ASSIGN_OR_RETURN(proof_memory_, NewSharedMemory(bytes, "pelton-proof"));
    ASSIGN_OR_RETURN(proof_, Mapping::Of(proof_memory_.get()));
    Words(*proof_)[0] = shared_nonce_;
    return absl::OkStatus();
  }

  absl::Status ExchangeAddresses(const std::string& address) {
    const HostIdentity self = HostIdentity::OfThisProcess();
    const std::string mine =
        absl::StrJoin({self.boot_id, absl::StrCat(self.network_namespace), address}, " ");
    absl::StatusOr<std::vector<std::string>> all =
        options_.bootstrap->AllGather("transport/shm/address", mine, options_.deadline);
    if (!all.ok()) return Annotate(all.status(), "shm: exchanging addresses");
    std::vector<int> elsewhere;
    for (int peer = 0; peer < world_size_; ++peer) {
      const std::vector<std::string> parts = absl::StrSplit((*all)[peer], ' ');
      HostIdentity identity;
      if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &identity.network_namespace)) {
        return absl::InvalidArgumentError(
            absl::StrCat("shm: rank ", NameOf(peer), ": malformed address"));
      }
      identity.boot_id = parts[0];
      if (!identity.SameHost(self)) elsewhere.push_back(NameOf(peer));
      addresses_.push_back(parts[2]);
    }
    if (elsewhere.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("shm: rank(s) ", absl::StrJoin(elsewhere, ", "),
                     " are not on the host of rank ", NameOf(rank_)));
  }

  absl::Status ConnectToLower() {
    for (int peer = 0; peer < rank_; ++peer) {
      absl::StatusOr<Descriptor> socket = Connect(addresses_[peer], options_.deadline);
      if (absl::IsUnavailable(socket.status())) {
        return About(peer, Annotate(socket.status(), "has ended; see what it says"));
      }
      if (!socket.ok()) return About(peer, socket.status());
      peers_[peer].socket = *std::move(socket);
      RETURN_IF_ERROR(About(peer, CheckUser(peer)));
      RETURN_IF_ERROR(AfterSending(peer, SendHello(peer)));
    }
    return absl::OkStatus();
  }

  // Whoever connects and says nothing, or not what a rank says, holds up nobody.
  absl::Status AcceptHigher(int listener) {
    std::vector<std::string> refused;
    std::deque<Descriptor> silent;
    for (int left = world_size_ - 1 - rank_; left > 0;) {
      std::vector<int> sockets = {listener};
      for (const Descriptor& socket : silent) sockets.push_back(socket.get());
      const std::vector<int> speaking = Speaking();
      for (const int peer : speaking) sockets.push_back(peers_[peer].socket.get());
      const absl::StatusOr<std::vector<bool>> readable = AwaitReadable(sockets, options_.deadline);
      if (!readable.ok()) return Missing(readable.status(), refused);
      for (size_t i = 0; i < speaking.size(); ++i) {
        if ((*readable)[1 + silent.size() + i]) RETURN_IF_ERROR(TakeIn(speaking[i]));
      }
      for (size_t i = silent.size(); i-- > 0;) {
        if (!(*readable)[1 + i]) continue;
        const absl::StatusOr<int> peer = Welcome(std::move(silent[i]));
        silent.erase(silent.begin() + static_cast<ptrdiff_t>(i));
        if (absl::IsResourceExhausted(peer.status())) {
          return Annotate(peer.status(), absl::StrCat("shm: rank ", NameOf(rank_)));
        }
        if (!peer.ok()) {
          if (refused.size() < kMaxSilent) refused.emplace_back(peer.status().message());
          continue;
        }
        // It has shown that it is that rank, so that nobody else will come in its place.
        RETURN_IF_ERROR(About(*peer, CheckUser(*peer)));
        RETURN_IF_ERROR(AfterSending(*peer, SendHello(*peer)));
        --left;
      }
      if (!(*readable)[0]) continue;
      absl::StatusOr<Descriptor> socket = Accept(listener, absl::InfinitePast());
      if (absl::IsResourceExhausted(socket.status())) {
        return Annotate(socket.status(), absl::StrCat("shm: rank ", NameOf(rank_)));
      }
      if (socket.ok()) silent.push_back(*std::move(socket));
      if (silent.size() > static_cast<size_t>(world_size_) + kMaxSilent) silent.pop_front();
    }
    return absl::OkStatus();
  }

  // Takes in a connection that has said something, and gives its rank, or drops it and says why.
  absl::StatusOr<int> Welcome(Descriptor socket) {
    ASSIGN_OR_RETURN(const Credentials credentials, PeerOf(socket.get()));
    const std::string who = absl::StrCat("process ", credentials.pid);
    if (credentials.uid != geteuid()) {
      return absl::PermissionDeniedError(absl::StrCat(who, " of user ", credentials.uid));
    }
    absl::StatusOr<Message> hello = Receive(socket.get(), absl::InfinitePast());
    if (!hello.ok()) return Annotate(hello.status(), who);
    RETURN_IF_ERROR(Annotate(CheckHello(*hello), who));
    const int peer = hello->frame.rank;
    if (peer <= rank_ || peer >= world_size_ || peers_[peer].socket.is_open()) {
      return absl::InvalidArgumentError(absl::StrCat(who, " says it is rank ", peer));
    }
    peers_[peer].socket = std::move(socket);
    hellos_[peer] = *std::move(hello);
    return peer;
  }

  absl::Status SendHello(int peer) {
    Frame frame;
    frame.type = Frame::kHello;
    frame.rank = rank_;
    frame.shared_nonce = shared_nonce_;
    frame.private_nonce = *private_nonce_;
    frame.address = reinterpret_cast<uintptr_t>(private_nonce_.get());
    return Send(peers_[peer].socket.get(), frame, options_.job_token, proof_memory_.get());
  }

  absl::Status CheckHello(const Message& hello) const {
    if (hello.frame.type != Frame::kHello || !hello.attached.is_open()) {
      return absl::InvalidArgumentError("malformed greeting");
    }
    if (!SameToken(hello.payload, options_.job_token)) {
      return absl::PermissionDeniedError("its job token is another");
    }
    return absl::OkStatus();
  }

  absl::Status CheckUser(int peer) {
    ASSIGN_OR_RETURN(const Credentials credentials, PeerOf(peers_[peer].socket.get()));
    if (credentials.uid != geteuid()) {
      return absl::PermissionDeniedError(absl::StrCat("belongs to user ", credentials.uid));
    }
    peers_[peer].pid = credentials.pid;
    // Before it has our greeting, upon which it tries to read.
    if (world_size_ == 2 && credentials.pid > 0) AllowReaders(credentials.pid);
    // The peer learns of this process's end by the socket's, whatever children it has forked.
    WatchForks();
    CloseInChildren(peers_[peer].socket.get());
    return absl::OkStatus();
  }

  // Reads the peer's nonces, leaves an answer in its memory and tells what was found.
  absl::Status SendProof(int peer) {
    if (peer == rank_) return absl::OkStatus();
    const Frame& hello = hellos_[peer].frame;
    absl::StatusOr<Mapping::Pointer> memory = Mapping::Of(hellos_[peer].attached.get());
    if (!memory.ok()) return About(peer, memory.status());
    if ((*memory)->size_bytes() < (1 + world_size_) * sizeof(uint64_t)) {
      return About(peer, absl::InvalidArgumentError("proof is too small"));
    }
    Frame frame;
    frame.type = Frame::kProof;
    frame.rank = rank_;
    frame.shared_nonce = Words(**memory)[0];
    Words(**memory)[1 + rank_] = ~frame.shared_nonce;
    uint64_t found = 0;
    const absl::Status read = ReadMemory(peers_[peer].pid, hello.address,
                                         reinterpret_cast<std::byte*>(&found), sizeof found);
    frame.private_nonce = read.ok() ? found : 0;
    return AfterSending(peer, Send(peers_[peer].socket.get(), frame));
  }

  absl::Status CheckProof(int peer) {
    if (peer == rank_) return absl::OkStatus();
    const Frame& proof = proofs_[peer].frame;
    if (proof.type != Frame::kProof || proof.shared_nonce != shared_nonce_ ||
        Words(*proof_)[1 + peer] != ~shared_nonce_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "shm: rank ", NameOf(peer), " cannot share memory with rank ", NameOf(rank_)));
    }
    peers_[peer].reads_us = proof.private_nonce == *private_nonce_;
    return absl::OkStatus();
  }

  static uint64_t* Words(const Mapping& mapping) {
    return reinterpret_cast<uint64_t*>(mapping.data());
  }

  int NameOf(int peer) const { return peers_[peer].name; }

  absl::Status About(int peer, const absl::Status& status) const {
    return Annotate(status, absl::StrCat("shm: rank ", NameOf(rank_), ": rank ", NameOf(peer)));
  }

  absl::Status Missing(const absl::Status& status, const std::vector<std::string>& refused) const {
    std::vector<int> missing;
    for (int peer = rank_ + 1; peer < world_size_; ++peer) {
      if (!peers_[peer].socket.is_open()) missing.push_back(NameOf(peer));
    }
    std::string text = absl::StrCat("shm: rank ", NameOf(rank_), ": rank(s) ",
                                    absl::StrJoin(missing, ", "), " did not connect");
    if (!refused.empty()) absl::StrAppend(&text, "; refused: ", absl::StrJoin(refused, ", "));
    return absl::Status(status.code(), text);
  }

  const TransportOptions& options_;
  const int rank_;
  const int world_size_;
  std::vector<Peer> peers_;
  std::vector<Message> hellos_;  // of type 0 until they come
  std::vector<Message> proofs_;
  std::vector<bool> is_through_;
  std::vector<std::string> addresses_;
  std::unique_ptr<uint64_t> private_nonce_;
  uint64_t shared_nonce_ = 0;
  Descriptor proof_memory_;
  Mapping::Pointer proof_;
};

}  // namespace

absl::StatusOr<std::vector<Peer>> MeetPeers(const TransportOptions& options) {
  const int rank = options.rank.value();
  const int world_size = options.world_size.value();
  if (rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: rank: ", rank, " is not in [0, ", world_size, ")"));
  }
  return Handshake(options).Run();
}

}  // namespace pelton::shm
