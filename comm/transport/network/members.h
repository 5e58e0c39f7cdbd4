// Who takes part in a communicator, and how their messages are told from a stranger's.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_MEMBERS_H_
#define PELTON_COMM_TRANSPORT_NETWORK_MEMBERS_H_

#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/transport/network/wire.h"
#include "core/base/ids.h"

namespace pelton::network {

// Threads: immutable once made. Owns: the keys of all paths from and to this rank.
class Members {
 public:
  // `rank`: in the group. `near`: ranks of the world with which nothing is exchanged here, because
  // another transport reaches them.
  Members(const std::string& job_token, CommunicatorId id, Group group, Rank rank,
          const std::vector<Rank>& near = {});

  CommunicatorId id() const { return id_; }
  Generation generation() const { return group_.generation; }
  int rank() const { return rank_.value(); }  // in the group
  int size() const { return group_.size().value(); }
  WorldSize world_size() const { return group_.size(); }
  const Group& group() const { return group_; }
  Rank WorldRankOf(int member) const { return group_.members[static_cast<size_t>(member)]; }

  // Whether messages go to `member` and come from it: it is not this rank, and not near.
  bool IsPeer(int member) const { return is_peer_[static_cast<size_t>(member)]; }

  // A header of this rank to `peer`.
  Header MakeHeader(MessageType type, int peer) const;
  // Whether a header was made by MakeHeader on the member that it names, for this rank.
  bool IsGenuine(const Header& header) const;

 private:
  const CommunicatorId id_;
  const Group group_;
  const Rank rank_;
  std::vector<MessageKey> outgoing_;  // by peer
  std::vector<MessageKey> incoming_;
  std::vector<bool> is_peer_;
};

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_MEMBERS_H_
