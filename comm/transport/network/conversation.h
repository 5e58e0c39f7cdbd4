// A communicator's worker with what is known of each peer: it outlives the communicator until the
// peers have taken what was sent.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_CONVERSATION_H_
#define PELTON_COMM_TRANSPORT_NETWORK_CONVERSATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/transport/network/point_to_point.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/network/worker.h"

namespace pelton::network {

// Threads: one at a time, which holds mutex(), where nothing else is said. Owns: the worker and
// what is in flight on it. The network outlives it.
class Conversation final : public Receiver {
 public:
  // Takes the mutex by itself, as AcceptFrom, Greet and the destructor do.
  static absl::StatusOr<std::unique_ptr<Conversation>> Create(Network& network, Members members);
  ~Conversation() override;

  Mutex& mutex() { return network_.mutex(); }
  const Members& members() const { return members_; }
  Worker& worker() { return *worker_; }
  PointToPoint& point_to_point() { return *point_to_point_; }

  // See Worker::AcceptFrom; the worker's address then. Takes the mutex.
  absl::StatusOr<std::string> AcceptFrom(const std::set<uint32_t>& hosts);
  // Connects to all peers and waits until all have greeted. Blocks: until `deadline`. Errors:
  // DeadlineExceeded: names the ranks that have not; Unavailable: a connection broke; the reason of
  // a peer that gave up meanwhile.
  absl::Status Greet(const std::vector<std::string>& addresses, absl::Time deadline);
  // Sends one note to all peers that are still there.
  void PostAll(const Header& like, const std::string& note = "");
  // Says goodbye; true once all of it is with the kernel. To be called until then.
  bool SayBye();
  // Every peer has said goodbye or is lost: nobody needs this worker any more.
  bool IsOver() const;

  // A peer's abort, once there was one.
  const absl::Status& aborted() const { return aborted_; }
  // Why the connection to `peer` broke; OK while it has not.
  const absl::Status& LossOf(int peer) const { return peers_[static_cast<size_t>(peer)].loss; }
  // Whether a peer has left or is lost.
  bool HasGaps() const { return has_gaps_; }
  bool HasLeft(int peer) const { return peers_[static_cast<size_t>(peer)].has_left; }

  // What a Rouse calls; null: nobody sleeps for this conversation.
  void set_rouse(std::function<void()> rouse) { rouse_ = std::move(rouse); }

  bool Receive(const Header& header, const Payload& payload) override;
  void Lose(int peer, const absl::Status& why) override;
  void Rouse() override {
    if (rouse_ != nullptr) rouse_();
  }

 private:
  struct Peer {
    bool has_greeted = false;
    bool has_answered = false;
    bool has_left = false;
    absl::Status loss;
  };

  Conversation(Network& network, Members members);
  absl::Status MeetAll(const std::vector<std::string>& addresses, absl::Time deadline);
  absl::Status ConnectAll(const std::vector<std::string>& addresses);
  // Whether all have greeted. Errors: as Greet.
  absl::StatusOr<bool> AdvanceGreeting(absl::Time deadline);
  absl::Status Missing() const;
  void Answer(int peer);

  Network& network_;
  const Members members_;
  std::function<void()> rouse_;
  std::vector<Peer> peers_;
  absl::Status aborted_;
  bool has_gaps_ = false;
  bool has_said_bye_ = false;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<PointToPoint> point_to_point_;
};

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_CONVERSATION_H_
