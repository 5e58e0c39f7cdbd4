// Messages over plain TCP: one connection to each peer for what this rank sends, one from each for
// what it receives.
#ifndef PELTON_COMM_TRANSPORT_TCP_TCP_WORKER_H_
#define PELTON_COMM_TRANSPORT_TCP_TCP_WORKER_H_

#include <netinet/in.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/tcp/frame.h"
#include "comm/transport/tcp/inbox.h"
#include "comm/transport/tcp/outbox.h"

namespace pelton::tcp {

// Threads: one at a time. Owns: the sockets and what is queued for them. The receiver outlives it.
class TcpWorker final : public network::Worker {
 public:
  // Listens on `host`, an IPv4 address in network order.
  static absl::StatusOr<std::unique_ptr<TcpWorker>> Create(in_addr_t host,
                                                           network::Receiver& receiver,
                                                           int peer_count);
  ~TcpWorker() override;
  TcpWorker(const TcpWorker&) = delete;
  TcpWorker& operator=(const TcpWorker&) = delete;

  const std::string& address() const override { return address_; }
  absl::Status Admit(const std::set<uint32_t>& hosts) override;
  absl::Status Bar() override;
  absl::Status Trouble() const override { return trouble_; }
  absl::Status Connect(int peer, const std::string& address) override;
  bool IsConnected(int peer) const override { return peers_[At(peer)].socket.is_open(); }

  absl::StatusOr<bool> Send(int peer, const Parcel& parcel) override;
  absl::StatusOr<bool> Pull(const network::Payload& payload, void* target,
                            network::Waiter* waiter) override;
  void Release(const network::Payload& payload) override;

  bool Progress() override;
  bool Arm() override { return true; }  // what is there stays readable
  int descriptor() const override { return events_.get(); }
  bool Flush() override;
  // The kernel goes on sending, and nothing unread is on a connection that only sends.
  bool DeliversWhenClosed() const override { return true; }
  void Close() override;

 private:
  // An offer of a peer's; a Payload's data points to it.
  struct Offer {
    int peer = 0;
    uint64_t id = 0;
    size_t size_bytes = 0;
    std::byte* target = nullptr;  // what is still to come goes here
    size_t left = 0;
    network::Waiter* waiter = nullptr;
  };
  struct Peer {
    Descriptor socket;
    Outbox outbox;
    bool awaits_room = false;  // to write more
    // Since when nothing can be sent to it, though it is still heard, and why.
    std::optional<absl::Time> deaf_since;
    absl::Status deafness;
    std::unordered_map<uint64_t, std::unique_ptr<Offer>> offers;
  };
  // A connection that came in. Nobody knows whose it is before its first message.
  class Incoming final : public FrameSink {
   public:
    Incoming(TcpWorker& worker, Descriptor socket)
        : worker_(worker), socket_(std::move(socket)), inbox_(*this) {}
    int socket() const { return socket_.get(); }
    int peer() const { return peer_; }
    absl::StatusOr<bool> Read() { return inbox_.Read(socket_.get()); }
    absl::Status OnFrame(const Frame& frame, const network::Header& header,
                         const std::byte* payload) override;
    absl::StatusOr<std::byte*> OnBody(const Frame& frame) override;
    void OnBodyDone(const Frame& frame) override;

   private:
    TcpWorker& worker_;
    const Descriptor socket_;
    Inbox inbox_;
    int peer_ = -1;
  };

  TcpWorker(network::Receiver& receiver, int peer_count);
  static size_t At(int peer) { return static_cast<size_t>(peer); }
  absl::Status Start(in_addr_t host);
  absl::Status Watch(int operation, int socket, uint32_t events, uint64_t key) const;
  bool Write(int peer);
  bool IsHeard(int peer) const;
  void Lose(int peer, const absl::Status& why);
  // Ends connections that nobody answers on, and peers that can only be heard.
  bool LookAtSilence();
  void MakeRoomForStrangers();
  void Break(int peer, const absl::Status& why);
  bool AcceptAll();
  bool ReadFrom(uint64_t key);
  bool Handle(uint64_t key, uint32_t events);
  std::unique_ptr<std::byte[]> TakeBlock();
  void Arrive(const network::Header& header, const std::byte* payload, size_t size_bytes);
  absl::Status ArriveOffer(int peer, const Frame& frame, const network::Header& header);
  void Answer(const Offer& offer, FrameType type);

  network::Receiver& receiver_;
  in_addr_t host_ = 0;
  std::string address_;
  std::set<uint32_t> admitted_;
  absl::Status trouble_;
  absl::Time next_look_ = absl::InfinitePast();
  Descriptor events_;
  Descriptor listener_;
  std::vector<Peer> peers_;
  std::unordered_map<uint64_t, std::unique_ptr<Incoming>> incoming_;  // by key
  uint64_t next_key_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;  // of kMaxMessageBytes, to be used again
};

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_TCP_WORKER_H_
