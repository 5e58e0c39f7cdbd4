// Messages over plain TCP, on the connections that all workers of a rank share.
#ifndef PELTON_COMM_TRANSPORT_TCP_TCP_WORKER_H_
#define PELTON_COMM_TRANSPORT_TCP_TCP_WORKER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/tcp/trunk.h"
#include "core/base/ids.h"

namespace pelton::tcp {

// Threads: as Worker. Owns: its place at the trunk, which outlives it as the receiver does.
class TcpWorker final : public network::Worker, public Port {
 public:
  // See Network::MakeWorker.
  static absl::StatusOr<std::unique_ptr<TcpWorker>> Create(Trunk& trunk,
                                                           network::Receiver& receiver,
                                                           const std::vector<Rank>& members);
  ~TcpWorker() override;
  TcpWorker(const TcpWorker&) = delete;
  TcpWorker& operator=(const TcpWorker&) = delete;

  const std::string& address() const override { return address_; }
  absl::Status AcceptFrom(const std::set<uint32_t>& hosts) override {
    return trunk_.AcceptFrom(hosts);
  }
  absl::Status StopListening() override;
  absl::Status Trouble() const override { return trunk_.trouble(); }
  absl::Status Connect(int peer, const std::string& address) override;
  bool IsConnected(int peer) const override;

  absl::StatusOr<bool> Send(int peer, const SendRequest& request) override;
  absl::StatusOr<bool> Pull(const network::Payload& payload, void* target,
                            network::Waiter* waiter) override;
  void Release(const network::Payload& payload) override;

  bool Progress() override;
  bool Arm() override { return true; }  // what is there stays readable
  int descriptor() const override { return trunk_.descriptor(); }
  bool Flush() override;
  bool HasArrived() override { return trunk_.HasArrived(); }
  // The network writes what was left behind.
  bool DeliversWhenClosed() const override { return true; }
  void Close() override;

  const std::vector<Rank>& members() const override { return members_; }
  bool Receive(const network::Header& header, const network::Payload& payload) override {
    return receiver_.Receive(header, payload);
  }
  bool Lose(Rank rank, const absl::Status& why) override;
  bool LosePort(Rank rank, uint32_t number, const absl::Status& why) override;
  void OnMoved(bool by_another) override;
  void OnLeaving(bool is_told) override {
    ++moves_;
    if (is_told) trunk_.Rouse(*this);
  }

 private:
  TcpWorker(Trunk& trunk, network::Receiver& receiver, const std::vector<Rank>& members)
      : trunk_(trunk), receiver_(receiver), members_(members), ports_(members.size(), 0) {}

  Trunk& trunk_;
  network::Receiver& receiver_;
  const std::vector<Rank> members_;  // peers, by number
  uint32_t port_ = 0;                // 0: closed
  bool is_opening_ = true;
  std::string address_;
  std::vector<uint32_t> ports_;  // of the peers' workers; 0: not connected to
  uint64_t moves_ = 0;           // of bytes of this worker's
};

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_TCP_WORKER_H_
