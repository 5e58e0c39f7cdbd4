// A UCX worker and its endpoints: messages to and from numbered peers, progressed by its caller.
#ifndef PELTON_COMM_TRANSPORT_UCX_WORKER_H_
#define PELTON_COMM_TRANSPORT_UCX_WORKER_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/ucx/context.h"
#include "comm/transport/ucx/door.h"
#include "comm/transport/ucx/wire.h"

namespace pelton::ucx {

// What came behind a header: bytes in UCX's memory, or the promise of bytes that Pull fetches.
// Threads: a value. Owns: nothing.
struct Payload {
  void* data = nullptr;
  size_t size_bytes = 0;
  bool is_rendezvous = false;
};

// Told of what comes in; called inside of Worker::Progress. Threads: the worker's. Owns: what its
// subclass says.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // True keeps the payload until Worker::Pull or Release. The header is of no known origin yet.
  virtual bool Receive(const Header& header, const Payload& payload) = 0;
  // The connection to `peer` broke.
  virtual void Lose(int peer, const absl::Status& why) = 0;
};

// Threads: one at a time. Owns: the ucp_worker and its endpoints. The context and the receiver
// outlive it.
class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const Context& context, Receiver& receiver,
                                                        int peer_count);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // What a peer's Connect needs; opaque bytes.
  const std::string& address() const { return address_; }
  // Where its peers come in.
  Door& door() { return door_; }
  // `address` must come from a rank of the job: UCX does not check it.
  absl::Status Connect(int peer, const std::string& address);
  bool IsConnected(int peer) const { return endpoints_[peer].handle != nullptr; }
  // For one-sided transfers (remote_memory.h); null if there is no connection.
  ucp_ep_h endpoint(int peer) const { return endpoints_[peer].handle; }

  // Called once per request that did not end at once; `argument` is the request's. The callee
  // frees `request` by ucp_request_free.
  using OnDone = ucp_send_nbx_callback_t;
  using OnPulled = ucp_am_recv_data_nbx_callback_t;

  struct Parcel {
    const Header* header;  // must stay as it is until the end
    const void* data;
    size_t size_bytes;
    bool is_rendezvous;
    void* argument;  // for OnDone
  };
  // Starts to send. True: it has ended already, and OnDone is not called. Blocks: never.
  absl::StatusOr<bool> Send(int peer, const Parcel& parcel, OnDone on_done);
  // Sends a short note that nobody waits for; nothing happens if the peer is lost.
  void Post(int peer, const Header& header, const std::string& note = "");
  // Whether all notes have left UCX's queues. Unlike Flush, this needs nothing of the peers.
  bool IsPosted() const { return letters_ == 0; }
  // Fetches a rendezvous payload. True: it has ended already, and OnPulled is not called.
  absl::StatusOr<bool> Pull(const Payload& payload, void* target, OnPulled on_pulled,
                            void* argument);
  void Release(const Payload& payload);

  // True if anything moved.
  bool Progress();
  // Readies descriptor() to become readable. False: something is there already.
  bool Arm();
  int descriptor() const { return descriptor_; }

  // To be called until true: all that was sent before the first call is with the kernel then, or
  // its connection is broken.
  bool Flush();
  // Ends all requests and drops all connections: no memory is touched afterwards, and only the
  // getters may be called.
  void Close();

 private:
  struct Endpoint {
    Worker* worker = nullptr;
    ucp_ep_h handle = nullptr;
    int peer = 0;
  };

  Worker(ucp_worker_h handle, Receiver& receiver, int peer_count);
  absl::Status Start(const std::set<int>& listening_before);
  static ucs_status_t OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                size_t size_bytes, const ucp_am_recv_param_t* param);
  static void OnError(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  ucp_worker_h handle_;
  Receiver& receiver_;
  std::vector<Endpoint> endpoints_;  // by peer; never resized, UCX holds pointers to them
  std::string address_;
  Door door_;
  int descriptor_ = -1;
  int letters_ = 0;
  void* flush_ = nullptr;
};

}  // namespace pelton::ucx

#endif  // PELTON_COMM_TRANSPORT_UCX_WORKER_H_
