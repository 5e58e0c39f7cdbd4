// Processes that die, stop or never were, a coordinator that is killed, and strangers at its port.
#include <arpa/inet.h>
#include <dirent.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/control/conformance_test.h"
#include "comm/control/coordinator_server.h"
#include "comm/control/grpc_control.h"
#include "comm/control/key_value.h"
#include "comm/control/subprocess_test.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/sanitizer.h"
#include "proto/control.grpc.pb.h"

namespace pelton {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kProgram[] = "comm/control/control_process";
constexpr char kToken[] = "0123456789abcdef";

std::unique_ptr<CoordinatorServer> StartServer(CoordinatorOptions options = {}) {
  options.token = kToken;
  auto server = CoordinatorServer::Start(options);
  PELTON_CHECK_OK(server.status());
  return *std::move(server);
}

std::unique_ptr<Control> MakeControl(const std::string& address, const char* token = kToken) {
  return *MakeGrpcControl(
      {.address = address, .token = token, .heartbeat_interval = absl::Milliseconds(50)});
}

std::vector<std::string> JoinCommand(const std::string& address, int rank, int world_size) {
  return {kProgram, "join", address, kToken, absl::StrCat(rank), absl::StrCat(world_size)};
}

// A connected TCP socket to "127.0.0.1:port".
// Threads: one at a time. Owns: the socket.
class RawConnection {
 public:
  explicit RawConnection(const std::string& address) {
    const std::vector<std::string> parts = absl::StrSplit(address, ':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(parts[1])));
    inet_pton(AF_INET, parts[0].c_str(), &to.sin_addr);
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~RawConnection() { close(socket_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;
  void Send(const std::string& bytes) {
    (void)send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  bool connected() const { return connected_; }

 private:
  int socket_;
  bool connected_;
};

// That a new world can still meet and agree.
void ExpectServes(CoordinatorServer& server) {
  Controls controls;
  for (int i = 0; i < 2; ++i) controls.push_back(MakeControl(server.address()));
  OnEveryRank(2, [&](int rank) {
    const auto joined = controls[rank]->Join(MakeJoin(rank, 2, "probe"), Late());
    EXPECT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE(Barrier(*controls[rank], "probe", Late()).ok());
  });
  for (const auto& control : controls) EXPECT_TRUE(control->Leave(Late()).ok());
}

TEST(ControlFaultTest, KilledRankIsOrderedToEverySurvivor) {
  // So long a silence is none: only the broken connection can tell.
  const auto server = StartServer({.heartbeat_timeout = absl::Minutes(10)});
  Subprocess victim(JoinCommand(server->address(), 1, 3));
  Subprocess witness(JoinCommand(server->address(), 2, 3));
  const auto control = MakeControl(server->address());
  OrderLog orders(control.get());
  ASSERT_TRUE(control->Join(MakeJoin(0, 3), Late()).ok());
  ASSERT_EQ(victim.ReadLine(Late()), "joined");
  ASSERT_EQ(witness.ReadLine(Late()), "joined");

  const absl::Time killed = absl::Now();
  victim.Signal(SIGKILL);
  const Order order = orders.Await(0);
  RecordProperty("notice_ms", static_cast<int>(absl::ToInt64Milliseconds(absl::Now() - killed)));
  EXPECT_EQ(order.kind, Order::Kind::kAbort);
  EXPECT_EQ(order.culprit, Rank(1));
  EXPECT_THAT(std::string(order.reason.message()),
              HasSubstr(absl::StrCat("rank 1 (pid ", victim.pid(), ") died: its connection")));
  EXPECT_THAT(witness.ReadLine(Late()), StartsWith("order of culprit 1: "));
  witness.CloseInput();
  while (true) {
    const std::string line = witness.ReadLine(Late());
    if (line == "left") break;
    ASSERT_NE(line, "") << "the witness did not leave";
  }
  ASSERT_TRUE(control->Leave(Late()).ok());
  EXPECT_TRUE(server->AwaitEmpty(Late()).ok());
}

TEST(ControlFaultTest, StoppedRankIsGivenUpAndLearnsSo) {
  const auto server = StartServer({.heartbeat_timeout = absl::Seconds(1)});
  Subprocess victim(JoinCommand(server->address(), 1, 2));
  const auto control = MakeControl(server->address());
  OrderLog orders(control.get());
  ASSERT_TRUE(control->Join(MakeJoin(0, 2), Late()).ok());
  ASSERT_EQ(victim.ReadLine(Late()), "joined");
  victim.Signal(SIGSTOP);
  const Order order = orders.Await(0);
  EXPECT_EQ(order.culprit, Rank(1));
  EXPECT_THAT(std::string(order.reason.message()), HasSubstr("no heartbeat for 1s"));
  victim.Signal(SIGCONT);
  EXPECT_THAT(victim.ReadLine(Late()), HasSubstr("order of culprit 1: job 'job': rank 1"));
}

TEST(ControlFaultTest, KilledCoordinatorIsOrderedToEveryRankAndEndsItsWaits) {
  Subprocess coordinator({kProgram, "serve", kToken});
  const std::string address = coordinator.ReadLine(Late());
  Subprocess other(JoinCommand(address, 1, 2));
  const auto control = MakeControl(address);
  OrderLog orders(control.get());
  ASSERT_TRUE(control->Join(MakeJoin(0, 2), Late()).ok());
  ASSERT_EQ(other.ReadLine(Late()), "joined");
  OnEveryRank(2, [&](int thread) {
    if (thread == 0) return coordinator.Signal(SIGKILL);
    const absl::Status status = Barrier(*control, "never", Late());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("rank 0: coordinator lost at ", address)));
  });
  const Order order = orders.Await(0);
  EXPECT_EQ(order.kind, Order::Kind::kCoordinatorLost);
  EXPECT_FALSE(order.culprit.has_value());
  EXPECT_EQ(order.reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(order.reason.message()),
              HasSubstr(absl::StrCat("coordinator lost at ", address)));
  EXPECT_THAT(other.ReadLine(Late()), HasSubstr("rank 1: coordinator lost at"));
}

TEST(ControlFaultTest, RankKilledWhileJoiningEndsTheJoinOfOthers) {
  const auto server = StartServer();
  Subprocess victim(JoinCommand(server->address(), 1, 3));
  const auto control = MakeControl(server->address());
  OnEveryRank(2, [&](int thread) {
    if (thread == 0) {
      const absl::Status status = control->Join(MakeJoin(0, 3), Late()).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 (pid"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("went away while it was joining"));
      return;
    }
    // Both wait at the coordinator once it names them.
    while (true) {
      const absl::Status waiting = server->AwaitEmpty(absl::Now() + absl::Milliseconds(5));
      if (absl::StrContains(waiting.message(), "0, 1")) break;
    }
    victim.Signal(SIGKILL);
  });
}

TEST(ControlFaultTest, StoppedServerIsOrderedToItsRanks) {
  auto server = StartServer();
  const auto control = MakeControl(server->address());
  OrderLog orders(control.get());
  ASSERT_TRUE(control->Join(MakeJoin(0, 1), Late()).ok());
  const absl::Status occupied = server->AwaitEmpty(absl::Now());
  EXPECT_EQ(occupied.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(occupied.message(), "ranks that have not left: job 'job': rank 0");
  server.reset();
  EXPECT_EQ(orders.Await(0).kind, Order::Kind::kCoordinatorLost);
  EXPECT_EQ(control->Leave(Late()).code(), absl::StatusCode::kUnavailable);
}

// A port that takes connections and says nothing. Threads: one at a time. Owns: the socket.
class MuteListener {
 public:
  MuteListener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // Its connections linger; the server is to have the port all the same.
    const int reuse = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    PELTON_CHECK(bind(socket_, generic, size) == 0) << "bind";
    PELTON_CHECK(listen(socket_, 1) == 0) << "listen";
    PELTON_CHECK(getsockname(socket_, generic, &size) == 0) << "getsockname";
    port_ = ntohs(address.sin_port);
  }
  ~MuteListener() { close(socket_); }
  // Returns when somebody has connected, and hangs up on them.
  void RefuseOne() { close(accept(socket_, nullptr, nullptr)); }
  int port() const { return port_; }

 private:
  const int socket_;
  int port_;
};

TEST(ControlFaultTest, JoinTriesAgainUntilTheCoordinatorStarts) {
  auto nobody = std::make_unique<MuteListener>();
  const int port = nobody->port();
  const auto control = MakeControl(absl::StrCat("127.0.0.1:", port));
  std::unique_ptr<CoordinatorServer> server;
  OnEveryRank(2, [&](int thread) {
    if (thread == 0) {
      const auto joined = control->Join(MakeJoin(0, 1), Late());
      EXPECT_TRUE(joined.ok()) << joined.status();
      return;
    }
    nobody->RefuseOne();
    nobody.reset();
    server = StartServer({.port = port});
  });
  EXPECT_TRUE(control->Leave(Late()).ok());
}

TEST(ControlFaultTest, JoinWithoutCoordinatorSaysWhere) {
  auto server = StartServer();
  const std::string address = server->address();
  server.reset();
  const absl::Status status =
      MakeControl(address)->Join(MakeJoin(3, 4), absl::Now() + absl::Milliseconds(200)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 3: job 'job': no coordinator answered at " + address));
}

TEST(ControlFaultTest, OptionsThatWouldBeUnsafeAreRefused) {
  const auto code = [](CoordinatorOptions options) {
    if (options.token.empty()) options.token = kToken;
    return CoordinatorServer::Start(options).status().code();
  };
  EXPECT_EQ(code({.interface = "0.0.0.0"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.interface = "::"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.interface = "0"}), absl::StatusCode::kInvalidArgument) << "a name for 0.0.0.0";
  EXPECT_EQ(code({.interface = "no such interface"}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code({.token = "short"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.token = "has a blank in it"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.port = 70000}), absl::StatusCode::kInvalidArgument);
  const auto server = StartServer({.interface = "lo"});
  EXPECT_THAT(server->address(), StartsWith("127.0.0.1:"));
  const int port = std::stoi(server->address().substr(10));
  EXPECT_EQ(code({.port = port}), absl::StatusCode::kUnavailable);
}

TEST(ControlFaultTest, WrongTokenIsRefusedWithoutDetails) {
  const auto server = StartServer();
  const auto control = MakeControl(server->address(), "fedcba9876543210");
  const absl::Status status = control->Join(MakeJoin(0, 1), Late()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr(kToken)));
  ExpectServes(*server);
}

// What a stranger sends who speaks our protocol but holds no token, or holds it and lies.
// Threads: the test's. Owns: server and channel.
class StrangerTest : public testing::Test {
 protected:
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(absl::ToChronoTime(Late()));
  }
  grpc::StatusCode EndOfStream(bool token, const proto::HeartbeatRequest& first) {
    grpc::ClientContext context;
    SetDeadline(&context);
    if (token) context.AddMetadata("pelton-token", kToken);
    const auto stream = stub_->Heartbeat(&context);
    stream->Write(first);
    proto::Order order;
    while (stream->Read(&order)) {
    }
    return stream->Finish().error_code();
  }

  // Not the default where a sanitizer shares two cores with other tests: gRPC's threads have been
  // kept from a heartbeat for ten seconds there, and that is not what strangers did.
  std::unique_ptr<CoordinatorServer> server_ = StartServer(
      {.heartbeat_timeout = kSanitized ? absl::Seconds(50) : limits::kHeartbeatTimeout});
  std::unique_ptr<proto::Coordinator::Stub> stub_ = proto::Coordinator::NewStub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
};

TEST_F(StrangerTest, EveryCallNeedsTheToken) {
  const auto code = [&](auto method, auto request, auto response) {
    grpc::ClientContext context;
    SetDeadline(&context);
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    EXPECT_EQ(status.error_message(), "");
    return status.error_code();
  };
  using Stub = proto::Coordinator::Stub;
  const auto refused = grpc::StatusCode::UNAUTHENTICATED;
  EXPECT_EQ(code(&Stub::Join, proto::JoinRequest(), proto::JoinResponse()), refused);
  EXPECT_EQ(code(&Stub::Ask, proto::AskRequest(), proto::ControlAnswer()), refused);
  EXPECT_EQ(code(&Stub::Report, proto::ReportRequest(), proto::ReportResponse()), refused);
  EXPECT_EQ(code(&Stub::Leave, proto::LeaveRequest(), proto::LeaveResponse()), refused);
  EXPECT_EQ(EndOfStream(false, proto::HeartbeatRequest()), refused);
}

TEST_F(StrangerTest, StreamOfNobodyEndsAndDisturbsNobody) {
  const auto control = MakeControl(server_->address());
  const auto membership = control->Join(MakeJoin(0, 1), Late());
  ASSERT_TRUE(membership.ok()) << membership.status();
  proto::HeartbeatRequest beat;
  EXPECT_EQ(EndOfStream(true, beat), grpc::StatusCode::FAILED_PRECONDITION);
  beat.mutable_caller()->set_job("job");
  beat.mutable_caller()->set_generation(membership->generation.value());
  EXPECT_EQ(EndOfStream(true, beat), grpc::StatusCode::ALREADY_EXISTS);
  beat.mutable_caller()->set_rank(-5);
  EXPECT_EQ(EndOfStream(true, beat), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(Barrier(*control, "undisturbed", Late()).ok());
}

TEST_F(StrangerTest, OversizeRequestIsRefusedBeforeItIsRead) {
  grpc::ClientContext context;
  SetDeadline(&context);
  context.AddMetadata("pelton-token", kToken);
  proto::AskRequest request;
  request.mutable_question()->mutable_key_value()->set_value(std::string(size_t{24} << 20, 'v'));
  proto::ControlAnswer response;
  EXPECT_EQ(stub_->Ask(&context, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectServes(*server_);
}

TEST_F(StrangerTest, AQuestionOfNoKindIsRefused) {
  grpc::ClientContext context;
  SetDeadline(&context);
  context.AddMetadata("pelton-token", kToken);
  proto::ControlAnswer response;
  const grpc::Status status = stub_->Ask(&context, proto::AskRequest(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("question: "));
}

TEST_F(StrangerTest, RandomBytesAndSilentConnectionsDoNoHarm) {
  constexpr int kConnections = 64;
  std::mt19937_64 random(7);
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < kConnections; ++i) {
    silent.push_back(std::make_unique<RawConnection>(server_->address()));
    ASSERT_TRUE(silent.back()->connected());
    RawConnection noisy(server_->address());
    // Half of them get past the greeting.
    std::string bytes = i % 2 == 0 ? "" : "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (size_t n = random() % 4096; n > 0; --n) bytes.push_back(static_cast<char>(random()));
    noisy.Send(bytes);
  }
  ExpectServes(*server_);
}

// Bytes that a stranger sends: noise, a greeting and noise, half a greeting, or nothing.
std::string StrangersBytes(std::mt19937_64& random) {
  const std::string greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const auto kind = random() % 4;
  if (kind == 0) return "";
  if (kind == 1) return greeting.substr(0, random() % greeting.size());
  std::string bytes = kind == 2 ? greeting : "";
  for (size_t n = random() % 2048; n > 0; --n) bytes.push_back(static_cast<char>(random()));
  return bytes;
}

TEST_F(StrangerTest, AJobGoesOnWhileStrangersKnock) {
  constexpr int kBarriers = kSanitized ? 30 : 150;
  constexpr size_t kHalfOpen = 32;
  constexpr uint64_t kSeed = 23;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::atomic<int> working{2};
  std::atomic<int> knocks{0};
  OnEveryRank(3, [&](int thread) {
    if (thread == 2) {
      std::mt19937_64 random(kSeed);
      std::deque<RawConnection> half_open;  // these say something and stay
      while (working.load() > 0) {
        half_open.emplace_back(server_->address()).Send(StrangersBytes(random));
        if (half_open.size() > kHalfOpen) half_open.pop_front();
        if (knocks.fetch_add(1) % 16 != 0) continue;
        grpc::ClientContext context;
        SetDeadline(&context);
        context.AddMetadata("pelton-token", "fedcba9876543210");
        proto::LeaveResponse response;
        EXPECT_EQ(stub_->Leave(&context, proto::LeaveRequest(), &response).error_code(),
                  grpc::StatusCode::UNAUTHENTICATED);
      }
      return;
    }
    const auto control = MakeControl(server_->address());
    const auto joined = control->Join(MakeJoin(thread, 2), Late());
    EXPECT_TRUE(joined.ok()) << joined.status();
    for (int i = 0; i < kBarriers; ++i) {
      // Rank 0 gives the strangers time to come in between.
      while (thread == 0 && knocks.load() < i) std::this_thread::yield();
      const absl::Status status = Barrier(*control, absl::StrCat("work", i), Late());
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_TRUE(control->Leave(Late()).ok());
    working.fetch_sub(1);
  });
  EXPECT_GE(knocks.load(), kBarriers - 1);
}

TEST_F(StrangerTest, RandomMessagesDoNoHarm) {
  const auto control = MakeControl(server_->address());
  ASSERT_TRUE(control->Join(MakeJoin(0, 1), Late()).ok());
  std::mt19937_64 random(11);
  for (int i = 0; i < 300; ++i) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(20)));
    context.AddMetadata("pelton-token", kToken);
    proto::AskRequest request;
    std::string bytes;
    for (size_t n = random() % 64; n > 0; --n) bytes.push_back(static_cast<char>(random()));
    (void)request.ParseFromString(bytes);  // whatever of it can be read
    request.mutable_caller()->set_job("job");
    request.mutable_caller()->set_generation(1);
    request.set_timeout_us(static_cast<int64_t>(random()));
    if (i % 4 != 0) {
      proto::KeyValueRequest& asked = *request.mutable_question()->mutable_key_value();
      (void)asked.ParseFromString(bytes);
      asked.set_kind(static_cast<proto::KeyValueRequest::Kind>(random() % 12));
      asked.add_keys(bytes);
    }
    proto::ControlAnswer response;
    (void)stub_->Ask(&context, request, &response);
  }
  const absl::Status status = Barrier(*control, "unharmed", Late());
  EXPECT_TRUE(status.ok()) << status;
  ExpectServes(*server_);
}

int CountEntries(const char* folder, const std::string& target_prefix) {
  DIR* const entries = opendir(folder);
  int count = 0;
  while (const dirent* const entry = readdir(entries)) {
    if (entry->d_name[0] == '.') continue;
    char target[256] = "";
    const std::string path = absl::StrCat(folder, "/", entry->d_name);
    const bool read = readlink(path.c_str(), target, sizeof(target) - 1) > 0;
    count += target_prefix.empty() || (read && absl::StartsWith(target, target_prefix));
  }
  closedir(entries);
  return count;
}

// Before gRPC has any: one, and those of a sanitizer, which start with the first thread that we
// make.
int CountThreadsAtStart() {
  std::thread([] {}).join();
  return CountEntries("/proc/self/task", "");
}
const int threads_at_start = CountThreadsAtStart();

TEST(ControlFaultTest, NoThreadAndNoSocketRemains) {
  {
    const auto server = StartServer();
    ExpectServes(*server);
  }
  // gRPC ends its threads in the background and tells nobody when it has.
  const absl::Time deadline = Late();
  int threads, sockets;
  do {
    poll(nullptr, 0, 5);
    threads = CountEntries("/proc/self/task", "");
    sockets = CountEntries("/proc/self/fd", "socket:");
  } while ((threads > threads_at_start || sockets > 0) && absl::Now() < deadline);
  EXPECT_LE(threads, threads_at_start);
  EXPECT_EQ(sockets, 0);
}

}  // namespace
}  // namespace pelton
