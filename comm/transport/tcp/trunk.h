// The connections of one rank, one to each other rank, which the workers of all its communicators
// share.
#ifndef PELTON_COMM_TRANSPORT_TCP_TRUNK_H_
#define PELTON_COMM_TRANSPORT_TCP_TRUNK_H_

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/tcp/connection.h"
#include "comm/transport/tcp/outbox.h"
#include "core/base/ids.h"

namespace pelton::tcp {

// A worker at a trunk, which knows it by a number. Threads: the trunk's. Owns: what its subclass
// says.
class Port : public Sender {
 public:
  virtual const std::vector<Rank>& members() const = 0;  // its peers, by number
  // As network::Receiver's.
  virtual bool Receive(const network::Header& header, const network::Payload& payload) = 0;
  // `rank` of the world is lost, or only its port of that number. False: it is none of its peers.
  virtual bool Lose(Rank rank, const absl::Status& why) = 0;
  virtual bool LosePort(Rank rank, uint32_t number, const absl::Status& why) = 0;
  // Something has come, or a waiter was told; another worker's turn may have brought it.
  virtual void OnMoved(bool by_another) = 0;

 protected:
  ~Port() = default;
};

// No communicator has this number; greetings have keys of their own.
inline constexpr CommunicatorId kGreetings(std::numeric_limits<uint32_t>::max() - 1);

// An offer of a peer's; a Payload's data points to it.
struct Offer {
  Rank peer;
  uint64_t id = 0;
  size_t size_bytes = 0;
  Port* port = nullptr;         // whose it is; null: nobody's any more, its bytes go nowhere
  std::byte* target = nullptr;  // of all its bytes
  size_t left = 0;              // bytes that are still to come
  network::Waiter* waiter = nullptr;
  bool is_withdrawn = false;  // the peer has said that no more of its bytes come
};

// Of two ranks the lower one connects to the other, once, when the first worker of both opens; the
// connection stays until one of the ranks ends, and carries both ways. So a process has as many
// sockets as it has peers, however many communicators it opens, and listens only while one of them
// opens.
//
// Frames name the receiver's worker by its port. What comes for a worker that is closed is dropped,
// and its sender is told that the peer's end is gone.
//
// Threads: one at a time, which holds the network's mutex. Owns: the sockets, what is queued for
// them and the offers. It outlives its workers.
class Trunk final : public ConnectionSink {
 public:
  // `host`: an IPv4 address of this rank's host, in network order. `members`: of the world, with
  // the keys of kGreetings.
  static absl::StatusOr<std::unique_ptr<Trunk>> Create(in_addr_t host, network::Members members);
  // Blocks: until HasArrived, for half a second at most.
  ~Trunk() override;
  Trunk(const Trunk&) = delete;
  Trunk& operator=(const Trunk&) = delete;

  // Gives `port` a number. It is told of the frames for that number until Leave. Peers can connect
  // from now on, until EndOpening has been called as often as this. Errors: no socket to listen on.
  absl::StatusOr<uint32_t> Join(Port& port);
  void EndOpening();
  // What is queued of the port's leaves all the same; its memory is not touched any more.
  void Leave(Port& port, uint32_t number);
  // Called when a port has left something behind that the kernel does not take at once: somebody
  // has to call WriteOrphans until it is empty, because no port may make progress any more.
  void set_on_orphans(std::function<void()> on_orphans) { on_orphans_ = std::move(on_orphans); }
  // Writes what ports have left behind, as far as it goes; the sockets that it waits for.
  std::vector<int> WriteOrphans();

  // "<IPv4>:<port>" on which this rank listens, while a worker opens.
  const std::string& address() const { return address_; }
  absl::Status AcceptFrom(const std::set<uint32_t>& hosts);
  // Why the last connection that came could not be accepted.
  const absl::Status& trouble() const { return trouble_; }
  // Has a connection to `peer`, whose Trunk listens at `address`, unless there is one.
  absl::Status Connect(Rank peer, const std::string& address);
  // Why `peer` was lost; OK: it was not.
  absl::Status LossOf(Rank peer) const;

  // Whether something can be sent to `peer`, now or as soon as it is connected.
  bool Reaches(Rank peer) const { return At(peer).state <= State::kOpen; }
  void Send(Rank peer, const network::Worker::SendRequest& request, uint32_t to, Port& from);
  // Whether all that `port` has sent to `peer` is with the kernel, or the connection is broken.
  bool Flush(Rank peer, const Port& port);
  // Whether all that was sent is with the peers' kernels. Only then may this process end, if what
  // it has sent is to be read.
  bool HasArrived();

  // Has the bytes of `offer` come to its target.
  void Fetch(Offer& offer);
  // Refuses `offer`: tells its sender so and forgets it. Its bytes are never fetched.
  void Decline(Offer& offer);
  // Of those of `peer`, also those that are nobody's any more.
  size_t offer_count(Rank peer) const { return At(peer).offers.size(); }
  void Recycle(void* block) { blocks_.emplace_back(static_cast<std::byte*>(block)); }

  // Moves what can be moved, of all ports; `by` is the port that asks for it.
  void Progress(const Port* by);
  // Something has come for `port`, or a waiter of its was told.
  void Rouse(Port& port) { port.OnMoved(/*by_another=*/&port != turn_of_); }
  // Readable when there is something to read, and when there is room for what waits to be written.
  int descriptor() const { return events_.get(); }

  // Of a connection, as a ConnectionSink:
  absl::StatusOr<Rank> OnGreeting(Connection& connection, const network::Header& header) override;
  absl::Status OnFrame(Rank peer, const Frame& frame, const network::Header& header,
                       const std::byte* payload) override;
  absl::StatusOr<std::byte*> OnBody(Rank peer, const Frame& frame) override;
  void OnBodyDone(Rank peer, const Frame& frame) override;

 private:
  enum class State : uint8_t {
    kApart,    // no worker has connected to it yet
    kAwaited,  // it is to connect to this rank
    kOpen,     // connected, or about to be
    kDeaf,     // nothing can be sent to it, but what it has sent may still come
    kLost,
  };
  struct Peer {
    State state = State::kApart;
    bool was_open = false;
    std::string address;                      // of the listener that a worker named
    Connection* connection = nullptr;         // one of connections_
    absl::Time since = absl::InfinitePast();  // of kAwaited and kDeaf
    absl::Status why;                         // of kDeaf and kLost
    Outbox outbox;
    bool awaits_room = false;  // to write more
    std::unordered_map<uint64_t, std::unique_ptr<Offer>> offers;
  };

  Trunk(in_addr_t host, network::Members members);
  Peer& At(Rank peer) { return peers_[static_cast<size_t>(peer.value())]; }
  const Peer& At(Rank peer) const { return peers_[static_cast<size_t>(peer.value())]; }

  absl::Status Listen();
  absl::Status Watch(int operation, int socket, uint32_t events, uint64_t key) const;
  absl::StatusOr<Connection*> Add(Descriptor socket, std::optional<Rank> peer);
  void Remove(Connection& connection);
  void NoteBytes(Rank peer, uint64_t id);
  absl::Status Dial(Rank peer);
  void Greet(Rank peer, Connection& connection);

  void Handle(uint64_t key, uint32_t events);
  void AcceptAll();
  void MakeRoomForStrangers();
  void Read(Connection& connection);
  void Write(Rank peer);
  // Nothing can be sent to the peer any more. It is lost when what it has sent before its end has
  // come in, but it must end soon, because it waits for answers that cannot be sent.
  void Deafen(Rank peer, const absl::Status& why);
  void Lose(Rank peer, const absl::Status& why);

  // Looks after what no event tells of: hosts that vanished, peers that do not come.
  void LookAtSilence();
  void LookAt(Rank peer, absl::Time now);
  bool IsKnockedAt(Rank peer) const;
  void Knock(Rank peer);
  void EndKnock(uint64_t key, uint32_t events);

  absl::Status Arrive(Rank peer, const Frame& frame, const network::Header& header,
                      const std::byte* payload);
  absl::Status ArriveOffer(Rank peer, const Frame& frame, const network::Header& header);
  void Withdraw(Rank peer, uint64_t id);
  void LosePort(Rank peer, uint32_t number);
  // The port of that number, if `peer` may speak for `source` there. Null: it is closed.
  absl::StatusOr<Port*> PortAt(uint32_t number, Rank peer, uint32_t source) const;
  void Answer(const Offer& offer, FrameType type);
  void Note(Rank peer, const Frame& note);
  void LeaveOffers(const Port& port, Rank peer);
  std::unique_ptr<std::byte[]> TakeBlock();

  const in_addr_t host_;
  const network::Members members_;
  Descriptor events_;
  Descriptor listener_;
  bool is_admitting_ = false;
  int openings_ = 0;  // of ports that peers may still connect to
  std::string address_;
  std::set<uint32_t> admitted_;
  absl::Status trouble_;
  absl::Time next_look_ = absl::InfinitePast();
  std::vector<Peer> peers_;                                                // by rank
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;  // by key
  struct Knocking {
    Rank peer;
    Descriptor socket;
  };
  std::unordered_map<uint64_t, Knocking> knocks_;  // by key: whether a peer still listens
  uint64_t next_key_ = 1;                          // 0 is the listener's
  std::unordered_map<uint32_t, Port*> ports_;      // by number
  uint32_t last_port_ = 0;
  std::function<void()> on_orphans_;
  uint32_t busy_turns_ = 0;
  const Port* turn_of_ = nullptr;                     // the port that makes progress
  std::vector<std::unique_ptr<std::byte[]>> blocks_;  // of kMaxMessageBytes, to be used again
};

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_TRUNK_H_
