// How a trunk takes in what comes: frames, offers and their bytes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/transport/tcp/trunk.h"
#include "core/base/status.h"

namespace pelton::tcp {
namespace {

using network::Header;
using network::Payload;
using network::Waiter;

}  // namespace

absl::Status Trunk::OnFrame(Rank peer, const Frame& frame, const Header& header,
                            const std::byte* payload) {
  switch (frame.type) {
    case FrameType::kMessage:
      return Arrive(peer, frame, header, payload);
    case FrameType::kOffer:
      return ArriveOffer(peer, frame, header);
    case FrameType::kFetch:
      if (At(peer).outbox.Fetched(frame.id)) {
        Write(peer);
      } else {
        Note(peer, {FrameType::kWithdrawn, 0, frame.id, 0});  // its worker has closed meanwhile
      }
      return absl::OkStatus();
    case FrameType::kDecline:
      At(peer).outbox.Declined(frame.id);
      Write(peer);
      return absl::OkStatus();
    case FrameType::kWithdrawn:
      Withdraw(peer, frame.id);
      return absl::OkStatus();
    case FrameType::kGone:
      LosePort(peer, frame.port);
      return absl::OkStatus();
    case FrameType::kBody:
    case FrameType::kGreeting:
      break;
  }
  return absl::InvalidArgumentError("tcp: a frame of no known type");
}

absl::StatusOr<std::byte*> Trunk::OnBody(Rank peer, const Frame& frame) {
  auto& offers = At(peer).offers;
  const auto found = offers.find(frame.id);
  const bool is_fetched =
      found != offers.end() && (found->second->waiter != nullptr || found->second->port == nullptr);
  if (!is_fetched || frame.size_bytes == 0 || frame.size_bytes > found->second->left) {
    return absl::InvalidArgumentError("tcp: bytes that nobody asked for");
  }
  const Offer& offer = *found->second;
  return offer.target == nullptr ? nullptr : offer.target + (offer.size_bytes - offer.left);
}

void Trunk::OnBodyDone(Rank peer, const Frame& frame) {
  auto& offers = At(peer).offers;
  const auto found = offers.find(frame.id);
  if (found == offers.end()) return;
  Offer& offer = *found->second;
  offer.left -= frame.size_bytes;
  if (offer.port != nullptr) offer.port->OnMoved(/*by_another=*/false);
  if (offer.left > 0) return;
  Waiter* const waiter = offer.waiter;
  Port* const port = offer.port;
  offers.erase(found);
  if (waiter == nullptr) return;
  waiter->OnDone(absl::OkStatus());
  Rouse(*port);
}

void Trunk::Withdraw(Rank peer, uint64_t id) {
  const auto found = At(peer).offers.find(id);
  if (found == At(peer).offers.end()) return;
  // Its worker learns of the peer's end by other means, and holds the offer until then.
  found->second->is_withdrawn = true;
  if (found->second->port == nullptr) At(peer).offers.erase(found);
}

void Trunk::LosePort(Rank peer, uint32_t number) {
  const absl::Status why =
      absl::UnavailableError("tcp: it has closed or given up this communicator");
  for (auto& [own, port] : ports_) {
    if (port->LosePort(peer, number, why)) Rouse(*port);
  }
}

absl::StatusOr<Port*> Trunk::PortAt(uint32_t number, Rank peer, uint32_t source) const {
  const auto found = ports_.find(number);
  if (found == ports_.end()) return nullptr;
  const std::vector<Rank>& members = found->second->members();
  if (source < members.size() && members[source] == peer) return found->second;
  return absl::InvalidArgumentError("tcp: a frame speaks for another rank");
}

absl::Status Trunk::Arrive(Rank peer, const Frame& frame, const Header& header,
                           const std::byte* payload) {
  ASSIGN_OR_RETURN(Port* const port, PortAt(frame.port, peer, header.source));
  if (port == nullptr) {
    Note(peer, {FrameType::kGone, frame.port, 0, 0});
    return absl::OkStatus();
  }
  if (frame.size_bytes == 0) {
    port->Receive(header, {});
  } else {
    std::unique_ptr<std::byte[]> block = TakeBlock();
    std::memcpy(block.get(), payload, frame.size_bytes);
    if (port->Receive(header, {block.get(), frame.size_bytes, false})) {
      block.release();  // Recycle brings it back
    } else {
      blocks_.push_back(std::move(block));
    }
  }
  Rouse(*port);
  return absl::OkStatus();
}

std::unique_ptr<std::byte[]> Trunk::TakeBlock() {
  if (blocks_.empty()) return std::make_unique<std::byte[]>(kMaxMessageBytes);
  std::unique_ptr<std::byte[]> block = std::move(blocks_.back());
  blocks_.pop_back();
  return block;
}

absl::Status Trunk::ArriveOffer(Rank peer, const Frame& frame, const Header& header) {
  ASSIGN_OR_RETURN(Port* const port, PortAt(frame.port, peer, header.source));
  // The receiver may still hold the earlier one of that number.
  if (At(peer).offers.contains(frame.id) || frame.size_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tcp: rank ", peer.value(), " offers message ", frame.id, " of ", frame.size_bytes,
        " bytes, which is empty or has the number of another; start "
        "all ranks from the same version of Pelton"));
  }
  auto made = std::make_unique<Offer>(Offer{peer, frame.id, frame.size_bytes, port});
  Offer& offer = *(At(peer).offers[frame.id] = std::move(made));
  const bool is_kept =
      port != nullptr && port->Receive(header, Payload{&offer, frame.size_bytes, true});
  if (!is_kept) Decline(offer);
  if (port != nullptr) Rouse(*port);
  return absl::OkStatus();
}

void Trunk::Fetch(Offer& offer) {
  offer.left = offer.size_bytes;
  Answer(offer, FrameType::kFetch);
}

void Trunk::Decline(Offer& offer) {
  Answer(offer, FrameType::kDecline);
  const uint64_t id = offer.id;
  At(offer.peer).offers.erase(id);
}

void Trunk::LeaveOffers(const Port& port, Rank peer) {
  Peer& from = At(peer);
  std::erase_if(from.offers, [&](const auto& entry) {
    Offer& offer = *entry.second;
    if (offer.port != &port) return false;
    Answer(offer, FrameType::kDecline);
    Waiter* const waiter = std::exchange(offer.waiter, nullptr);
    if (waiter == nullptr || from.state == State::kLost) return true;
    // Bytes of it may be on their way: until the peer says that no more come.
    offer.port = nullptr;
    offer.target = nullptr;
    if (from.connection != nullptr) from.connection->Divert(offer.id);
    waiter->OnDone(absl::CancelledError("tcp: closed"));
    return offer.is_withdrawn;
  });
}

}  // namespace pelton::tcp
