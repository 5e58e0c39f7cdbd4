// What carries messages to and from numbered peers: one implementation for each kind of wire.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_WORKER_H_
#define PELTON_COMM_TRANSPORT_NETWORK_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/network/wire.h"
#include "core/base/ids.h"
#include "core/base/sync.h"

namespace pelton::network {

// What came behind a header: bytes in the worker's memory, or the promise of bytes that Pull
// fetches. Threads: a value. Owns: nothing.
struct Payload {
  void* data = nullptr;
  size_t size_bytes = 0;
  bool is_rendezvous = false;
};

// Told of what comes in; called inside of Progress of its worker, or of one that shares connections
// with it. Threads: the worker's. Owns: what its subclass says.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // True keeps the payload until Worker::Pull or Release. The header is of no known origin yet.
  virtual bool Receive(const Header& header, const Payload& payload) = 0;
  // The connection to `peer` broke.
  virtual void Lose(int peer, const absl::Status& why) = 0;
  // Something came, or a waiter was told, while another worker made progress: a thread that sleeps
  // until this one's descriptor is readable has to look.
  virtual void Rouse() {}
};

// Told once when what it was handed for has ended, inside of any call of the worker. Threads: the
// worker's. Owns: what its subclass says.
class Waiter {
 public:
  virtual void OnDone(const absl::Status& status) = 0;

 protected:
  ~Waiter() = default;
};

// Threads: one at a time, which holds the network's mutex. Owns: its connections, or its share of
// them. The receiver outlives it.
class Worker {
 public:
  virtual ~Worker() = default;

  // What a peer's Connect needs; opaque bytes.
  virtual const std::string& address() const = 0;
  // Until StopListening, only these IPv4 addresses (in network order) may connect, where the system
  // permits such filters; nobody may before.
  virtual absl::Status AcceptFrom(const std::set<uint32_t>& hosts) = 0;
  // Every peer is connected: from now on nothing listens for this worker. Errors:
  // ResourceExhausted: names the system's reason.
  virtual absl::Status StopListening() = 0;
  // What keeps this rank from letting peers in; OK: nothing. Errors: ResourceExhausted.
  virtual absl::Status Trouble() const { return absl::OkStatus(); }
  // `address` must come from a rank of the job: it is not checked. Blocks: never.
  virtual absl::Status Connect(int peer, const std::string& address) = 0;
  virtual bool IsConnected(int peer) const = 0;

  struct SendRequest {
    const Header* header;  // these stay as they are until the end
    const void* data;
    size_t size_bytes;
    bool is_rendezvous;
    Waiter* waiter;
  };
  // Starts to send. True: it has ended already, and the waiter is not called. A message that is not
  // a rendezvous has ended when the worker or the kernel has a copy, a rendezvous when its bytes
  // have left. Blocks: never.
  virtual absl::StatusOr<bool> Send(int peer, const SendRequest& request) = 0;
  // Fetches a rendezvous payload. True: it has ended already, and the waiter is not called.
  virtual absl::StatusOr<bool> Pull(const Payload& payload, void* target, Waiter* waiter) = 0;
  virtual void Release(const Payload& payload) = 0;

  // Sends a short note that nobody waits for; nothing happens if the peer is lost.
  void Post(int peer, const Header& header, const std::string& note = "");
  // Whether all notes have left, or those to one peer. Unlike Flush, this needs nothing of the
  // peers.
  bool IsPosted() const;
  bool IsPostedTo(int peer) const;

  // True if anything moved. Blocks: never.
  virtual bool Progress() = 0;
  // Readies descriptor() to become readable. False: something is there already.
  virtual bool Arm() = 0;
  virtual int descriptor() const = 0;

  // To be called until true: all that was sent before the first call is with the kernel then, or
  // its connection is broken.
  virtual bool Flush() = 0;
  // Whether what was flushed is with the peers' hosts, so that this process may end.
  virtual bool HasArrived() { return true; }
  // Whether notes that were posted arrive although this worker is closed.
  virtual bool DeliversWhenClosed() const { return false; }
  // Ends all requests, and drops the connections that are this worker's alone: no memory is touched
  // afterwards, and only the getters may be called.
  virtual void Close() = 0;

 private:
  struct PostedNote;
  std::unordered_map<int, int> posted_notes_;  // on their way, by peer
};

// One rank's end of a network, on one interface of its host. Its workers may share connections, and
// what one of them reads may be another's; so all of them, and what they call, are used under one
// mutex.
// Threads: any; MakeWorker as a worker. Owns: what its subclass says. It outlives its workers.
class Network {
 public:
  virtual ~Network() = default;
  virtual const std::string& interface() const = 0;  // never ""
  // A worker to and from `members`, ranks of the world, which are its peers in this order; this
  // rank is one of them.
  virtual absl::StatusOr<std::unique_ptr<Worker>> MakeWorker(Receiver& receiver,
                                                             const std::vector<Rank>& members) = 0;
  Mutex& mutex() { return mutex_; }

 private:
  Mutex mutex_;
};

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_WORKER_H_
