// A transport is one kind of wire: it opens communicators between the ranks that it can reach.
#ifndef PELTON_COMM_TRANSPORT_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_TRANSPORT_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "core/registry/registry.h"

namespace pelton {

// How the ranks of a transport exchange their addresses before it exists; the control plane
// implements it. Threads: one at a time. Owns: what its subclass says.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // The values of all ranks, by rank; collective, with the same key on all of them. A key is used
  // once. Blocks: until all have called, or `deadline`. Errors: DeadlineExceeded: names the missing
  // ranks.
  virtual absl::StatusOr<std::vector<std::string>> AllGather(const std::string& key,
                                                             const std::string& value,
                                                             absl::Time deadline) = 0;
};

class Transport;

struct TransportOptions {
  Rank rank;
  WorldSize world_size;
  std::string job_token;           // a connection that does not prove it is refused
  Bootstrap* bootstrap = nullptr;  // borrowed while the transport is being made
  absl::Time deadline;             // for the making
  // A transport of the same ranks over the hosts' memory and wires, for the ranks of a device's
  // transport to agree by; it outlives what is made. Transports of hosts do not look at it.
  Transport* host = nullptr;
  // Network interface to listen and send on, by its name or an IPv4 address of it; "": loopback.
  std::string interface = "";
  // Ranks that another transport reaches, such as those of this host: a wire between hosts makes no
  // connection to them, and its communicators carry nothing for them.
  std::vector<Rank> near = {};
  // By rank: the number by which texts speak of it, which is the job's where a transport has the
  // ranks of one host alone; empty: its own. Transports between hosts have all ranks.
  std::vector<Rank> names = {};
  // Of a device's transport; the thread's current one, if not given.
  std::optional<int32_t> device_index = std::nullopt;
};

// Threads: Open by one thread at a time; Abort by any. Owns: the connections to its peers.
class Transport {
 public:
  virtual ~Transport() = default;

  // Opens the group's communicator `id` on this rank; collective over the group, in the same order
  // on all of its ranks. The communicator must not outlive the transport. Blocks: until all have
  // called, or `deadline`. Errors: InvalidArgument: this rank is not in the group;
  // DeadlineExceeded: names the missing ranks.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                             absl::Time deadline) = 0;

  // Aborts every open communicator with `reason`: a peer was found dead by other means. Blocks:
  // never.
  virtual void Abort(const absl::Status& reason) = 0;

  // Tells the peers that this rank launches nothing any more and leaves in good order. Memory that
  // users hold may keep a transport alive to the end of its process, and without a goodbye that end
  // would be a death, which ends also what this rank has done its part of. Blocks: for half a
  // second at most, while a peer does not take the news.
  virtual void SayGoodbye() {}
};

using TransportFactory = absl::StatusOr<std::unique_ptr<Transport>> (*)(const TransportOptions&);
using TransportRegistry = Registry<TransportFactory>;

}  // namespace pelton

// One line beside a transport's code: REGISTER_TRANSPORT(shm, "ranks of one host",
// MakeShmTransport);
#define REGISTER_TRANSPORT(name, summary, factory)                        \
  static const bool pelton_registered_transport_##name [[maybe_unused]] = \
      ::pelton::TransportRegistry::Get().Register(#name, summary, factory)

#endif  // PELTON_COMM_TRANSPORT_TRANSPORT_H_
