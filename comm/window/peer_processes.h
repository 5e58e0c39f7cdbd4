// The processes that the ranks of a group are, as windows need to know them.
#ifndef PELTON_COMM_WINDOW_PEER_PROCESSES_H_
#define PELTON_COMM_WINDOW_PEER_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/transport/descriptor.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// The texts of all ranks, by rank; collective over the communicator. Blocks: until all have called,
// or `deadline`. Errors: the communicator's.
absl::StatusOr<std::vector<std::string>> ExchangeTexts(Communicator& communicator,
                                                       const std::string& mine,
                                                       const MovingDeadline& deadline);

// OK on every rank where it is so on all, else an error of the first rank's kind on every rank,
// which names all that failed; collective. Blocks and Errors: also as ExchangeTexts.
absl::Status AgreeOnStatus(Communicator& communicator, const absl::Status& mine,
                           const MovingDeadline& deadline);

// Which process each rank is, whether it lives, and who reads whose memory. One for all windows of
// a group. A *far* rank is on another host, or in a container with processes of its own: there is
// no memory to share with it. Threads: any. Owns: a descriptor for each near peer in another
// process.
class PeerProcesses {
 public:
  // Collective. Ranks with different `host_label`s are far from each other, wherever they are.
  // Blocks: until all have called, or `deadline`. Errors: those of the communicator; Unavailable: a
  // process has ended.
  static absl::StatusOr<std::shared_ptr<const PeerProcesses>> Meet(
      Communicator& communicator, const MovingDeadline& deadline,
      const std::string& host_label = "");
  // All ranks in this process: a simulation. `host_of`: the number of each rank's host. `check`
  // answers Check of near ranks; null: all live. Shared: as Meet's.
  static std::shared_ptr<const PeerProcesses> AllHere(
      Rank rank, const std::vector<int32_t>& host_of,
      std::function<absl::Status(Rank peer)> check = nullptr);

  // Errors: Unavailable: its process has ended. OK for a far one: its link knows.
  absl::Status Check(Rank peer) const;
  bool is_far(Rank peer) const { return peers_[Index(peer)].is_far; }
  // The same answer on all ranks.
  bool has_far_ranks() const;
  // Of a near one.
  pid_t pid(Rank peer) const { return peers_[Index(peer)].pid; }
  // Whether this process may read the private memory of `peer`.
  bool may_read(Rank peer) const { return peers_[Index(peer)].may_read; }
  WorldSize world_size() const { return WorldSize(static_cast<int32_t>(peers_.size())); }

 private:
  struct Peer {
    pid_t pid = 0;
    bool may_read = true;
    bool is_far = false;
    Descriptor process;  // a pidfd; none of this process
  };
  struct Card;  // what a rank says of itself

  static size_t Index(Rank rank) { return static_cast<size_t>(rank.value()); }
  // `probe` is what others try to read.
  static Card CardOf(const uint64_t& probe, const std::string& host_label);
  static absl::StatusOr<Peer> Look(const Card& mine, const Card& theirs);

  std::vector<Peer> peers_;                       // by rank
  std::function<absl::Status(Rank peer)> check_;  // of a simulation, or null
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_PEER_PROCESSES_H_
