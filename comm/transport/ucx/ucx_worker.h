// A UCX worker and its endpoints: messages to and from numbered peers, progressed by its caller.
#ifndef PELTON_COMM_TRANSPORT_UCX_UCX_WORKER_H_
#define PELTON_COMM_TRANSPORT_UCX_UCX_WORKER_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/ucx/ucx_library.h"

namespace pelton::ucx {

// The sockets on which UCX listens for one worker; connections that stand are not touched.
// UCX's TCP wire trusts every connection. Bytes that follow its magic number can end the process or
// write its memory, and it has no hook for a token. So strangers are kept from it, while
// connections are made and afterwards.
// Threads: one at a time. Owns: nothing; the sockets are UCX's.
class ListeningSockets {
 public:
  // The TCP sockets of this process that listen.
  static std::set<int> Listening();
  // The worker's sockets: those that listen now, did not `before`, and have their port in the
  // worker's address. They accept from nobody until AcceptFrom, where filters are permitted.
  static ListeningSockets Of(const std::set<int>& before, const std::string& worker_address);

  // Until StopListening, packets count only if they come from one of these IPv4 addresses (in
  // network order). Does nothing where the system lets only root filter a socket's packets: a
  // firewall has to do it there.
  void AcceptFrom(const std::set<uint32_t>& addresses) const;
  // From now on nothing listens: every peer is connected. UCX keeps the descriptors' numbers, which
  // belong to idle sockets now. Errors: ResourceExhausted: names the system's reason.
  absl::Status StopListening();

 private:
  std::vector<int> sockets_;
};

// Threads: one at a time. Owns: the ucp_worker and its endpoints. The context and the receiver
// outlive it.
class UcxWorker final : public network::Worker {
 public:
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const Context& context,
                                                           network::Receiver& receiver,
                                                           int peer_count);
  ~UcxWorker() override;
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const std::string& address() const override { return address_; }
  absl::Status AcceptFrom(const std::set<uint32_t>& hosts) override {
    listening_sockets_.AcceptFrom(hosts);
    return absl::OkStatus();
  }
  absl::Status StopListening() override { return listening_sockets_.StopListening(); }
  absl::Status Connect(int peer, const std::string& address) override;
  bool IsConnected(int peer) const override { return endpoints_[peer].handle != nullptr; }

  absl::StatusOr<bool> Send(int peer, const SendRequest& message) override;
  absl::StatusOr<bool> Pull(const network::Payload& payload, void* target,
                            network::Waiter* waiter) override;
  void Release(const network::Payload& payload) override;

  bool Progress() override;
  bool Arm() override;
  int descriptor() const override { return descriptor_; }
  bool Flush() override;
  void Close() override;

 private:
  struct Endpoint {
    UcxWorker* worker = nullptr;
    ucp_ep_h handle = nullptr;
    int peer = 0;
  };

  UcxWorker(ucp_worker_h handle, network::Receiver& receiver, int peer_count);
  absl::Status Start(const std::set<int>& listening_before);
  static ucs_status_t OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                size_t size_bytes, const ucp_am_recv_param_t* param);
  static void OnError(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  ucp_worker_h handle_;
  network::Receiver& receiver_;
  std::vector<Endpoint> endpoints_;  // by peer; never resized, UCX holds pointers to them
  std::string address_;
  ListeningSockets listening_sockets_;
  int descriptor_ = -1;
  void* flush_ = nullptr;
};

}  // namespace pelton::ucx

#endif  // PELTON_COMM_TRANSPORT_UCX_UCX_WORKER_H_
