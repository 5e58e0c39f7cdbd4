#include "backend/link/link_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/transport/shm/socket.h"
#include "core/actor/wait_hook.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr int kSocketType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr size_t kChunkBytes = 32 << 10;  // a socket's default buffer holds several
constexpr int kBacklog = 64;
constexpr size_t kMostRights = 253;  // SCM_MAX_FD of the kernel

// Before each packet's part of a message.
struct PacketHeader {
  static constexpr uint32_t kMagic = 0x504C4B01;
  uint32_t magic = kMagic;
  uint32_t total_bytes = 0;  // of the whole message
  uint32_t offset = 0;       // of this part in it
  uint32_t descriptors = 0;  // that come along with this packet
};
static_assert(sizeof(PacketHeader) == 16, "part of the wire format");

absl::Status FillAddress(const std::string& path, sockaddr_un* out) {
  out->sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof out->sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path '", path, "' has ", path.size(), " bytes, must have 1 to ",
                     sizeof out->sun_path - 1,
                     "; set TMPDIR to a shorter folder, or --socket to a shorter path"));
  }
  std::memcpy(out->sun_path, path.data(), path.size());
  return absl::OkStatus();
}

// In a simulation others run meanwhile.
absl::Status AwaitInSimulation(WaitHook& hook, int socket, decltype(pollfd::events) events,
                               absl::Time deadline) {
  const auto has_come = [&] {
    pollfd entry{socket, events, 0};
    return poll(&entry, 1, 0) != 0;
  };
  if (hook.WaitUntil(has_come, deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      events == POLLIN
          ? "no message came"
          : "the process at the other end of the link has taken no message until the deadline; "
            "`pelton status` shows where it stands");
}

absl::Status AwaitReadable(int socket, absl::Time deadline) {
  WaitHook* const hook = WaitHook::Current();
  if (hook != nullptr) return AwaitInSimulation(*hook, socket, POLLIN, deadline);
  return shm::AwaitReadable({socket}, deadline).status();
}

absl::Status AwaitWritable(int socket, absl::Time deadline) {
  WaitHook* const hook = WaitHook::Current();
  if (hook != nullptr) return AwaitInSimulation(*hook, socket, POLLOUT, deadline);
  while (true) {
    const absl::Duration left = deadline - WaitClock().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          "the process at the other end of the link has taken no message until the deadline; "
          "`pelton status` shows where it stands");
    }
    const int64_t slice_ms =
        absl::ToInt64Milliseconds(std::min(left + absl::Milliseconds(1), kInterruptInterval));
    pollfd entry{socket, POLLOUT, 0};
    const int ready = poll(&entry, 1, static_cast<int>(slice_ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return SystemError("poll");
  }
}

// One packet as it came.
// Threads: a value. Owns: the descriptors.
struct Packet {
  PacketHeader header;
  std::string chunk;
  std::vector<Descriptor> descriptors;
};

absl::Status CheckPacket(const Packet& packet, size_t got, int flags) {
  const PacketHeader& header = packet.header;
  if (got < sizeof header || (flags & MSG_TRUNC) != 0 || header.magic != PacketHeader::kMagic) {
    return absl::InvalidArgumentError(
        "a packet came that is none of the link's; start the trainer and the daemon from one "
        "installation");
  }
  if ((flags & MSG_CTRUNC) != 0 && packet.descriptors.size() < header.descriptors) {
    return absl::ResourceExhaustedError(absl::StrCat("recvmsg: ", ErrorText(EMFILE)));
  }
  if (header.total_bytes > LinkSocket::kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", header.total_bytes,
                                                   " bytes; at most ", LinkSocket::kMaxMessageBytes,
                                                   " are taken"));
  }
  if (packet.descriptors.size() != header.descriptors ||
      header.descriptors > LinkSocket::kMaxDescriptors) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet with ", packet.descriptors.size(), " descriptors that says ",
                     header.descriptors, "; at most ", LinkSocket::kMaxDescriptors, " are taken"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Packet> ReceivePacket(int socket, absl::Time deadline) {
  Packet packet;
  std::array<char, kChunkBytes> chunk;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostRights * sizeof(int))];
  while (true) {
    iovec parts[2] = {{&packet.header, sizeof packet.header}, {chunk.data(), chunk.size()}};
    msghdr header{};
    header.msg_iov = parts;
    header.msg_iovlen = 2;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // An empty packet, which looks like the end, may bring descriptors as well.
    if (got >= 0) packet.descriptors = shm::AttachedTo(header);
    if (got == 0) return absl::UnavailableError("the connection was closed");
    if (got < 0 && errno == EAGAIN) {
      RETURN_IF_ERROR(AwaitReadable(socket, deadline));
      continue;
    }
    // A peer that closed with something of ours unread: its last messages come after this error.
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (got < 0) return SystemError("recvmsg");
    RETURN_IF_ERROR(CheckPacket(packet, static_cast<size_t>(got), header.msg_flags));
    packet.chunk.assign(chunk.data(), static_cast<size_t>(got) - sizeof packet.header);
    return packet;
  }
}

}  // namespace

absl::StatusOr<Descriptor> LinkSocket::Listen(const std::string& path) {
  sockaddr_un name{};
  RETURN_IF_ERROR(FillAddress(path, &name));
  Descriptor listener(socket(AF_UNIX, kSocketType, 0));
  if (!listener.is_open()) return SystemError("socket");
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) {
    return Annotate(SystemError("bind"), path);
  }
  if (listen(listener.get(), kBacklog) != 0) return SystemError("listen");
  return listener;
}

absl::StatusOr<Descriptor> LinkSocket::Connect(const std::string& path, absl::Time deadline) {
  constexpr int kRetryMs = 1;
  sockaddr_un name{};
  RETURN_IF_ERROR(FillAddress(path, &name));
  Descriptor connection(socket(AF_UNIX, kSocketType, 0));
  if (!connection.is_open()) return SystemError("socket");
  while (connect(connection.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED) {
      return absl::NotFoundError(
          absl::StrCat("no daemon listens at ", path, "; start one, or name another socket"));
    }
    // The listener's queue is full; the kernel tells nobody when it no longer is.
    if (errno != EAGAIN && errno != EINTR) return Annotate(SystemError("connect"), path);
    if (WaitClock().Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the daemon at ", path,
                       " has not accepted the connection until the "
                       "deadline; look at its log, or start it again"));
    }
    RETURN_IF_ERROR(CheckInterrupt());
    poll(nullptr, 0, kRetryMs);
  }
  return connection;
}

absl::Status LinkSocket::SendPacket(absl::string_view header, absl::string_view chunk,
                                    absl::Span<const int> descriptors, absl::Time deadline) {
  iovec parts[2] = {{const_cast<char*>(header.data()), header.size()},
                    {const_cast<char*>(chunk.data()), chunk.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = chunk.empty() ? 1 : 2;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) shm::Attach(descriptors, control, message);
  while (sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != ETOOMANYREFS) return SystemError("sendmsg");
    RETURN_IF_ERROR(AwaitWritable(socket_.get(), deadline));
  }
  return absl::OkStatus();
}

absl::Status LinkSocket::Send(absl::string_view payload, absl::Span<const int> descriptors,
                              absl::Time deadline) {
  if (payload.size() > kMaxMessageBytes || descriptors.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of ", payload.size(), " bytes with ", descriptors.size(),
        " descriptors; at most ", kMaxMessageBytes, " and ", kMaxDescriptors, " may be sent"));
  }
  if (!sending_.Take(std::max(deadline, Clock::Real().Now() + kTurnPatience))) {
    return absl::DeadlineExceededError(
        "the process at the other end of the link has not taken the message before this one; "
        "`pelton status` shows where it stands");
  }
  const TurnHolder turn(&sending_);
  PacketHeader header;
  header.total_bytes = static_cast<uint32_t>(payload.size());
  do {
    const absl::string_view chunk = payload.substr(header.offset, kChunkBytes);
    header.descriptors = header.offset == 0 ? static_cast<uint32_t>(descriptors.size()) : 0;
    const absl::string_view bytes(reinterpret_cast<const char*>(&header), sizeof header);
    RETURN_IF_ERROR(SendPacket(
        bytes, chunk, header.offset == 0 ? descriptors : absl::Span<const int>(), deadline));
    header.offset += static_cast<uint32_t>(chunk.size());
  } while (header.offset < header.total_bytes);
  return absl::OkStatus();
}

absl::Status LinkSocket::Send(const google::protobuf::MessageLite& message, absl::Time deadline) {
  return Send(message.SerializeAsString(), {}, deadline);
}

absl::StatusOr<LinkSocket::Message> LinkSocket::Receive(absl::Time deadline) {
  Message message;
  uint32_t total_bytes = 0;
  do {
    absl::StatusOr<Packet> packet = ReceivePacket(socket_.get(), deadline);
    if (!packet.ok() && !message.payload.empty() && absl::IsDeadlineExceeded(packet.status())) {
      return absl::UnavailableError(
          "the process at the other end of the link stopped in the middle of a message; start it "
          "again");
    }
    RETURN_IF_ERROR(packet.status());
    const PacketHeader& header = packet->header;
    const size_t filled = message.payload.size();
    if (filled == 0) total_bytes = header.total_bytes;
    const bool is_last = filled + packet->chunk.size() == total_bytes;
    if (header.offset != filled || header.total_bytes != total_bytes ||
        filled + packet->chunk.size() > total_bytes || (packet->chunk.empty() && !is_last)) {
      return absl::InvalidArgumentError(
          "a packet came that does not continue its message; start the trainer and the daemon from "
          "one installation");
    }
    message.payload += packet->chunk;
    for (Descriptor& descriptor : packet->descriptors) {
      message.descriptors.push_back(std::move(descriptor));
    }
    deadline = std::max(deadline, WaitClock().Now() + kPacketPatience);
  } while (message.payload.size() < total_bytes);
  if (message.descriptors.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message came with ", message.descriptors.size(), " descriptors; at most ",
                     kMaxDescriptors, " are taken"));
  }
  return message;
}

absl::Status LinkSocket::Receive(google::protobuf::MessageLite& message, absl::Time deadline) {
  ASSIGN_OR_RETURN(const Message received, Receive(deadline));
  if (message.ParseFromString(received.payload)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(received.payload.size(), " bytes came that are no ", message.GetTypeName(),
                   "; start the trainer and the daemon from one installation"));
}

absl::StatusOr<LinkSocket::Message> LinkSocket::ReceiveWithLooks(
    absl::Time deadline, absl::FunctionRef<absl::Status()> look) {
  while (true) {
    const absl::Time now = WaitClock().Now();
    absl::StatusOr<Message> received = Receive(std::min(deadline, now + kInterruptInterval));
    if (received.ok() || !absl::IsDeadlineExceeded(received.status()) || now >= deadline) {
      return received;
    }
    RETURN_IF_ERROR(look());
  }
}

bool LinkSocket::IsClosed() const {
  pollfd entry{socket_.get(), POLLRDHUP, 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void LinkSocket::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace pelton
