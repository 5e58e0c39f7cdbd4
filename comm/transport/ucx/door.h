// Closes the ports on which UCX listens. UCX's TCP wire trusts whoever connects: bytes that follow
// its magic number can end the process or write its memory, and it has no hook for a token. So
// strangers are kept from it, while connections are made and afterwards.
#ifndef PELTON_COMM_TRANSPORT_UCX_DOOR_H_
#define PELTON_COMM_TRANSPORT_UCX_DOOR_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace pelton::ucx {

// The listening sockets of one worker; connections that stand are not touched.
// Threads: one at a time. Owns: nothing; the sockets are UCX's.
class Door {
 public:
  // The TCP sockets of this process that listen.
  static std::set<int> Listening();
  // The worker's door: what listens now, did not `before`, and has its port in the worker's
  // address. It admits nobody until Admit, where filters are permitted.
  static Door Of(const std::set<int>& before, const std::string& worker_address);

  // Until Bar, packets count only if they come from one of these IPv4 addresses (in network order).
  // Does nothing where the system lets only root filter a socket's packets: a firewall has to do it
  // there.
  void Admit(const std::set<uint32_t>& addresses) const;
  // From now on nothing listens: every peer is connected. UCX keeps the descriptors' numbers, which
  // belong to idle sockets now. Errors: ResourceExhausted: names the system's reason.
  absl::Status Bar();

 private:
  std::vector<int> sockets_;
};

}  // namespace pelton::ucx

#endif  // PELTON_COMM_TRANSPORT_UCX_DOOR_H_
