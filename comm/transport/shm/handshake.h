// How the ranks of one host find each other, and prove that they are what they say.
#ifndef PELTON_COMM_TRANSPORT_SHM_HANDSHAKE_H_
#define PELTON_COMM_TRANSPORT_SHM_HANDSHAKE_H_

#include <sys/types.h>

#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/transport.h"

namespace pelton::shm {

// Another rank, after the handshake. Threads: one at a time. Owns: its descriptors.
struct Peer {
  Descriptor socket;      // closed for this rank itself
  pid_t pid = 0;          // as this process sees it
  int name = 0;           // the number by which texts speak of it
  bool reads_us = false;  // may read this process's private memory
};

// Connects this rank to all others. Every rank listens on a random abstract Unix socket, tells its
// address through the bootstrap, connects to the lower ranks and accepts the higher ones. Over each
// connection: same user (SO_PEERCRED), same job token, then a proof that both are on one host: each
// passes memory with a nonce, which the other reads and answers there. Result: by rank; [rank] is
// this rank. Blocks: until options.deadline. Errors: FailedPrecondition: a rank is on another host;
// DeadlineExceeded, Unavailable, PermissionDenied: names the ranks that are missing or refused;
// Aborted: another rank has ended, and has said why. A rank that ends here tells the others.
absl::StatusOr<std::vector<Peer>> MeetPeers(const TransportOptions& options);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_HANDSHAKE_H_
