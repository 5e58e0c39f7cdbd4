// How the ranks of a network speak while they open communicators, and when one of these ends.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_INTERCOM_H_
#define PELTON_COMM_TRANSPORT_NETWORK_INTERCOM_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/transport.h"
#include "core/base/sync.h"

namespace pelton::network {

// A worker beside those of the communicators, to every rank of the world. It makes progress only on
// ranks that need it, because they open a communicator or suspect a peer.
// Threads: any; what says so is called with the network's mutex held. Owns: the worker, and the
// messages that nobody has asked for. The network outlives it.
class Intercom final : public Receiver {
 public:
  // Exchanges the workers' addresses over the bootstrap and connects to every rank, so that nobody
  // needs to be let in later; collective over the world. Blocks: until
  // `options.deadline`. Errors: Unauthenticated: names a rank that does not hold the job's token.
  static absl::StatusOr<std::unique_ptr<Intercom>> Make(Network& network,
                                                        const TransportOptions& options);
  ~Intercom() override;

  // The values of all members of `members`, by member, "" of those that are near; collective over
  // them. Blocks: until
  // `deadline`. Errors: DeadlineExceeded: names the missing ranks; Unavailable: names a lost one.
  absl::StatusOr<std::vector<std::string>> Exchange(const Members& members,
                                                    const std::string& value, absl::Time deadline);

  // The IPv4 addresses of the hosts of the world's ranks, in network order. Only these may connect
  // to a worker.
  const std::set<uint32_t>& hosts() const { return hosts_; }

  // Tells the others that this rank has aborted their communicator. The mutex is held. Blocks:
  // never.
  void TellAbort(const Members& members, const absl::Status& reason, uint8_t flags);
  // To be called until true: all that was told has left. The mutex is held. Blocks: never.
  bool IsTold();
  // Tells all ranks that this one leaves in good order. To be called until true: it has left then.
  // Blocks: never.
  bool SayGoodbye();
  // What a member has told of this communicator: its abort, or that its connection is gone without
  // a goodbye. OK: nothing. The mutex is held. Blocks: never.
  absl::Status NewsOf(const Members& members);

  bool Receive(const Header& header, const Payload& payload) override;
  void Lose(int peer, const absl::Status& why) override;

 private:
  // Communicator, generation, rank.
  using Key = std::tuple<uint32_t, uint32_t, int>;

  Intercom(Network& network, const TransportOptions& options);
  absl::Status Start(Network& network, const TransportOptions& options);
  absl::Status AddPeerAddress(int rank, const std::string& text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Connect(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerTo(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SendValue(const Members& members, const std::string& value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Missing(const Members& members) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether what was said to the members has left. Others may stand still.
  bool ArePosted(const Members& members) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::string> TakeValues(const Members& members, const std::string& own)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string job_token_;
  std::set<uint32_t> hosts_;  // immutable after Start
  const Members world_;       // of all ranks; its keys are the intercom messages'
  Mutex& mutex_;              // the network's
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> losses_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> has_left_ ABSL_GUARDED_BY(mutex_);  // by rank
  bool has_said_goodbye_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> unanswered_ ABSL_GUARDED_BY(mutex_);  // values of ours, by rank
  std::map<Key, std::deque<std::string>> values_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, absl::Status> aborts_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Worker> worker_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_INTERCOM_H_
