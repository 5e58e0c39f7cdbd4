#include "tests/fuzz/packets.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace pelton::fuzz {
namespace {

constexpr size_t kMostDescriptors = 7;

// False: the queue is full.
bool SendPacket(int socket, size_t descriptors, absl::string_view bytes) {
  static const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  if (descriptors > 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    std::fill_n(reinterpret_cast<int*>(CMSG_DATA(rights)), descriptors, file);
  }
  return sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

}  // namespace

Descriptor SocketWith(Input input) {
  int ends[2];
  PELTON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const Descriptor sender(ends[0]);
  Descriptor receiver(ends[1]);
  while (!input.empty()) {
    const size_t descriptors = input.TakeByte() % (kMostDescriptors + 1);
    if (!SendPacket(sender.get(), descriptors, input.TakeChunk())) break;
  }
  return receiver;
}

std::string Packet(uint8_t descriptors, absl::string_view bytes) {
  return Byte(descriptors) + Chunk(bytes);
}

}  // namespace pelton::fuzz
