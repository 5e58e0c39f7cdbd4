#include "comm/transport/ucx/door.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/descriptor.h"

namespace pelton::ucx {
namespace {

// Of a filter program, by the kernel.
constexpr size_t kMaxInstructions = BPF_MAXINSNS;
constexpr uint32_t kSourceAddressOffset = 12;  // in an IPv4 header
constexpr uint32_t kWholePacket = 0xffffffff;

bool Listens(int socket) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

// In network order; 0 if it is no IP socket.
in_port_t PortOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  if (address.ss_family == AF_INET6) return reinterpret_cast<sockaddr_in6*>(&address)->sin6_port;
  return 0;
}

// Takes the packets whose source is one of `addresses`, and drops all others.
std::vector<sock_filter> FilterOf(const std::set<uint32_t>& addresses) {
  const auto source = static_cast<uint32_t>(SKF_NET_OFF) + kSourceAddressOffset;
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, source)};
  for (const uint32_t address : addresses) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(address), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, kWholePacket));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  return program;
}

}  // namespace

std::set<int> Door::Listening() {
  std::set<int> listening;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  if (folder == nullptr) return listening;
  while (const dirent* entry = readdir(folder.get())) {
    int descriptor = -1;
    if (!absl::SimpleAtoi(entry->d_name, &descriptor)) continue;
    if (Listens(descriptor) && PortOf(descriptor) != 0) listening.insert(descriptor);
  }
  return listening;
}

Door Door::Of(const std::set<int>& before, const std::string& worker_address) {
  Door door;
  for (const int socket : Listening()) {
    const in_port_t port = PortOf(socket);
    const std::string text(reinterpret_cast<const char*>(&port), sizeof port);
    const bool is_ours = worker_address.find(text) != std::string::npos;
    if (!before.contains(socket) && is_ours) door.sockets_.push_back(socket);
  }
  door.Admit({});  // nobody yet
  return door;
}

void Door::Admit(const std::set<uint32_t>& addresses) const {
  std::vector<sock_filter> filter = FilterOf(addresses);
  if (filter.size() > kMaxInstructions) return;
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  for (const int socket : sockets_) {
    setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  }
}

absl::Status Door::Bar() {
  for (const int socket : sockets_) {
    const Descriptor idle(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!idle.is_open() || dup3(idle.get(), socket, O_CLOEXEC) < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("ucx: closing a port to strangers: ", std::strerror(errno)));
    }
  }
  sockets_.clear();
  return absl::OkStatus();
}

}  // namespace pelton::ucx
