// What the coordinator does with strangers, and with connections that ask for nothing.
#include "comm/control/coordinator_server.h"

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/control/grpc_control.h"
#include "core/base/check.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// A client that speaks HTTP/2 as far as it must to be kept: it answers settings and pings.
// Threads: one. Owns: its connection.
class PoliteStranger {
 public:
  explicit PoliteStranger(const std::string& address) {
    const size_t colon = address.rfind(':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    uint32_t port = 0;
    PELTON_CHECK(absl::SimpleAtoi(address.substr(colon + 1), &port));
    to.sin_port = htons(static_cast<uint16_t>(port));
    PELTON_CHECK(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) == 1);
    PELTON_CHECK(connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
    const timeval longest = {60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
    Say(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9));
  }

  ~PoliteStranger() { close(socket_); }
  PoliteStranger(const PoliteStranger&) = delete;
  PoliteStranger& operator=(const PoliteStranger&) = delete;

  // Whether the other end closes the connection, at some time. Blocks: for a minute at most.
  bool IsSentAway() {
    constexpr uint8_t kSettings = 4;
    constexpr uint8_t kPing = 6;
    while (true) {
      std::string head;
      if (!Hear(9, &head)) return is_closed_;
      const auto byte = [&](size_t i) { return static_cast<uint8_t>(head[i]); };
      std::string body;
      const size_t size = size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2);
      if (!Hear(size, &body)) return is_closed_;
      const bool is_answer = (byte(4) & 1) != 0;
      if (byte(3) == kSettings && !is_answer) Say(std::string("\0\0\0\4\1\0\0\0\0", 9));
      if (byte(3) == kPing && !is_answer) Say(std::string("\0\0\10\6\1\0\0\0\0", 9) + body);
    }
  }

 private:
  void Say(const std::string& bytes) {
    (void)!send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  bool Hear(size_t size, std::string* bytes) {
    bytes->resize(size);
    if (size == 0) return true;
    const ssize_t count = recv(socket_, bytes->data(), size, MSG_WAITALL);
    is_closed_ = count == 0 || (count < 0 && errno == ECONNRESET);
    return count == static_cast<ssize_t>(size);
  }

  const int socket_ = socket(AF_INET, SOCK_STREAM, 0);
  bool is_closed_ = false;
};

TEST(CoordinatorServerTest, AConnectionThatAsksForNothingIsEnded) {
  CoordinatorOptions options;
  options.token = "0123456789abcdef";
  options.heartbeat_timeout = absl::Milliseconds(500);
  auto server = CoordinatorServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  PoliteStranger stranger((*server)->address());
  EXPECT_TRUE(stranger.IsSentAway());
}

// Who has no token is told so before it has sent a request, of which nothing is taken in.
TEST(CoordinatorServerTest, TheTokenIsLookedAtBeforeTheRequest) {
  CoordinatorOptions options;
  options.token = "0123456789abcdef";
  auto server = CoordinatorServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  grpc::GenericStub stub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  for (const char* method : {"Join", "Ask", "Report", "Leave"}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    context.AddMetadata("pelton-token", "another-token-of-sixteen");
    context.set_wait_for_ready(true);
    grpc::CompletionQueue queue;
    const auto call =
        stub.PrepareCall(&context, absl::StrCat("/pelton.proto.Coordinator/", method), &queue);
    grpc::Status status;
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    queue.Next(&tag, &ok);
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
  }
}

// The oldest go. A rank, which is older than all of them, stays.
TEST(CoordinatorServerTest, StrangersHoldOnlySoManyConnections) {
  // An eighth of these.
  const rlimit files = {480, 480};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  CoordinatorOptions options;
  options.token = "0123456789abcdef";
  options.heartbeat_timeout = absl::Seconds(60);
  auto server = CoordinatorServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  auto control = MakeGrpcControl({.address = (*server)->address(),
                                  .token = options.token,
                                  .heartbeat_timeout = options.heartbeat_timeout});
  ASSERT_TRUE(control.ok()) << control.status();
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  JoinRequest join;
  join.job = "job";
  join.world_size = WorldSize(1);
  ASSERT_TRUE((*control)->Join(join, deadline).ok());
  std::vector<std::unique_ptr<PoliteStranger>> strangers;
  for (int i = 0; i < 120; ++i) {
    strangers.push_back(std::make_unique<PoliteStranger>((*server)->address()));
  }
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(strangers[i]->IsSentAway()) << i;
  EXPECT_EQ(Barrier(**control, "still there", deadline), absl::OkStatus());
  EXPECT_EQ((*control)->Leave(deadline), absl::OkStatus());
}

}  // namespace
}  // namespace pelton
