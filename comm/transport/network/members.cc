#include "comm/transport/network/members.h"

#include <algorithm>
#include <utility>

namespace pelton::network {

Members::Members(const std::string& job_token, CommunicatorId id, Group group, Rank rank,
                 const std::vector<Rank>& near)
    : id_(id), group_(std::move(group)), rank_(rank) {
  for (int32_t i = 0; i < group_.size().value(); ++i) {
    const Rank peer(i);
    outgoing_.push_back(DeriveKey(job_token, {id_, group_.generation, rank_, peer}));
    incoming_.push_back(DeriveKey(job_token, {id_, group_.generation, peer, rank_}));
    const bool is_near = std::find(near.begin(), near.end(), WorldRankOf(i)) != near.end();
    is_peer_.push_back(peer != rank_ && !is_near);
  }
}

Header Members::MakeHeader(MessageType type, int peer) const {
  Header header;
  header.key = outgoing_[static_cast<size_t>(peer)];
  header.type = type;
  header.source = static_cast<uint32_t>(rank_.value());
  header.operation.communicator = id_;
  header.operation.generation = group_.generation;
  return header;
}

bool Members::IsGenuine(const Header& header) const {
  return header.source < incoming_.size() && SameKey(header.key, incoming_[header.source]) &&
         is_peer_[header.source];
}

}  // namespace pelton::network
