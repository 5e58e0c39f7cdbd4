#include "comm/transport/tcp/tcp_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"

namespace pelton::tcp {
namespace {

absl::Status Broken() { return absl::UnavailableError("tcp: the connection is broken"); }

}  // namespace

absl::StatusOr<std::unique_ptr<TcpWorker>> TcpWorker::Create(Trunk& trunk,
                                                             network::Receiver& receiver,
                                                             const std::vector<Rank>& members) {
  std::unique_ptr<TcpWorker> worker(new TcpWorker(trunk, receiver, members));
  ASSIGN_OR_RETURN(worker->port_, trunk.Join(*worker));
  worker->address_ = absl::StrCat(trunk.address(), "/", worker->port_);
  return worker;
}

TcpWorker::~TcpWorker() { Close(); }

absl::Status TcpWorker::StopListening() {
  if (std::exchange(is_opening_, false)) trunk_.EndOpening();
  return absl::OkStatus();
}

absl::Status TcpWorker::Connect(int peer, const std::string& address) {
  const Rank rank = members_[static_cast<size_t>(peer)];
  const std::vector<std::string> parts = absl::StrSplit(address, '/');
  uint32_t port = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port) || port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp: rank ", rank.value(), " gives '", address,
                     "' for its address, not <IPv4>:<port>/<number>; start all ranks from the same "
                     "version of Pelton"));
  }
  ports_[static_cast<size_t>(peer)] = port;
  RETURN_IF_ERROR(trunk_.Connect(rank, parts[0]));
  const absl::Status loss = trunk_.LossOf(rank);
  if (!loss.ok()) receiver_.Lose(peer, loss);  // before this worker was there to be told
  return absl::OkStatus();
}

bool TcpWorker::IsConnected(int peer) const {
  const auto number = static_cast<size_t>(peer);
  return port_ != 0 && ports_[number] != 0 && trunk_.Reaches(members_[number]);
}

absl::StatusOr<bool> TcpWorker::Send(int peer, const SendRequest& request) {
  if (!IsConnected(peer)) return Broken();
  const auto number = static_cast<size_t>(peer);
  trunk_.Send(members_[number], request, ports_[number], *this);
  return false;
}

absl::StatusOr<bool> TcpWorker::Pull(const network::Payload& payload, void* target,
                                     network::Waiter* waiter) {
  Offer& offer = *static_cast<Offer*>(payload.data);
  if (!trunk_.Reaches(offer.peer)) return Broken();
  offer.target = static_cast<std::byte*>(target);
  offer.waiter = waiter;
  trunk_.Fetch(offer);
  return false;
}

void TcpWorker::Release(const network::Payload& payload) {
  if (payload.is_rendezvous) {
    trunk_.Decline(*static_cast<Offer*>(payload.data));
  } else {
    trunk_.Recycle(payload.data);
  }
}

bool TcpWorker::Progress() {
  const uint64_t before = moves_;
  trunk_.Progress(this);
  return moves_ != before;
}

bool TcpWorker::Flush() {
  bool is_flushed = true;
  for (const Rank member : members_) is_flushed = trunk_.Flush(member, *this) && is_flushed;
  return is_flushed;
}

void TcpWorker::Close() {
  if (port_ == 0) return;
  trunk_.Leave(*this, std::exchange(port_, 0));
  StopListening().IgnoreError();
}

bool TcpWorker::Lose(Rank rank, const absl::Status& why) {
  const auto found = std::find(members_.begin(), members_.end(), rank);
  if (found == members_.end()) return false;
  receiver_.Lose(static_cast<int>(found - members_.begin()), why);
  return true;
}

bool TcpWorker::LosePort(Rank rank, uint32_t number, const absl::Status& why) {
  const auto found = std::find(members_.begin(), members_.end(), rank);
  const auto peer = static_cast<size_t>(found - members_.begin());
  if (found == members_.end() || ports_[peer] != number) return false;
  ports_[peer] = 0;  // nothing more goes there
  receiver_.Lose(static_cast<int>(peer), why);
  return true;
}

void TcpWorker::OnMoved(bool by_another) {
  ++moves_;
  if (by_another) receiver_.Rouse();
}

}  // namespace pelton::tcp
