// What tells one process from another, and which processes may share memory.
#ifndef PELTON_COMM_CONTROL_HOST_IDENTITY_H_
#define PELTON_COMM_CONTROL_HOST_IDENTITY_H_

#include <cstdint>
#include <string>

namespace pelton {

// Threads: a value. Owns: its string.
struct HostIdentity {
  std::string boot_id;             // of the running kernel
  uint64_t network_namespace = 0;  // inode number
  int64_t pid = 0;                 // as the process itself sees it

  // Whether both processes can reach each other's Unix sockets: a guess to be proved by doing so.
  bool SameHost(const HostIdentity& other) const {
    return boot_id == other.boot_id && network_namespace == other.network_namespace;
  }
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;

  // Parts that the system does not tell stay empty.
  static HostIdentity OfThisProcess();
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_HOST_IDENTITY_H_
