#include "comm/control/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace pelton {

HostIdentity HostIdentity::OfThisProcess() {
  HostIdentity identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot_id;
  struct stat network;
  if (stat("/proc/self/ns/net", &network) == 0) identity.network_namespace = network.st_ino;
  identity.pid = getpid();
  return identity;
}

}  // namespace pelton
