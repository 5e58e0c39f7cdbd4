// Ranks as processes: deaths, silence, strangers at the door.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/shm/test_processes.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "comm/transport/ucx/ucx_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::network {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr size_t kCount = size_t{4} << 20;  // float32: 16 MiB

absl::Time Soon() { return absl::Now() + absl::Seconds(40); }

// Sends to the next rank and receives from the one before; the first failure.
absl::Status Shift(Communicator& communicator, std::vector<float>& out, std::vector<float>& in,
                   absl::Time deadline) {
  const int32_t n = communicator.world_size().value();
  const int32_t rank = communicator.rank().value();
  const auto recv =
      Recv(communicator, {in.data(), in.size(), DType::kFloat32}, Rank((rank + n - 1) % n));
  if (!recv.ok()) return recv.status();
  const auto send =
      Send(communicator, {out.data(), out.size(), DType::kFloat32}, Rank((rank + 1) % n));
  if (!send.ok()) return send.status();
  const absl::Status received = Await(communicator, *recv, deadline);
  return received.ok() ? Await(communicator, *send, deadline) : received;
}

// Shifts around the ring until something fails; what failed.
std::string ShiftForEver(const TransportOptions& options, TransportFactory factory,
                         absl::Duration patience) {
  auto end = shm::MakeEnd(options, factory);
  if (!end.ok()) return end.status().ToString();
  std::vector<float> out(kCount, 1);
  std::vector<float> in(kCount);
  while (true) {
    const absl::Status status = Shift(*end->communicator, out, in, absl::Now() + patience);
    if (!status.ok()) return status.ToString();
    shm::Processes::Mark(options.rank.value());
  }
}

class NetworkProcessTest : public testing::TestWithParam<TransportFactory> {};

INSTANTIATE_TEST_SUITE_P(Tcp, NetworkProcessTest, testing::Values(&MakeTcpTransport));
INSTANTIATE_TEST_SUITE_P(Ucx, NetworkProcessTest, testing::Values(&MakeUcxTransport));

TEST_P(NetworkProcessTest, AKilledRankIsNamedByAllSurvivors) {
  shm::Processes processes(3, [factory = GetParam()](const TransportOptions& options) {
    return ShiftForEver(options, factory, absl::Seconds(40));
  });
  processes.AwaitMark(1, 3);
  kill(processes.pid(1), SIGKILL);
  const absl::Time killed_at = absl::Now();
  for (const int survivor : {0, 2}) {
    const std::string said = processes.Join(survivor);
    EXPECT_THAT(said, HasSubstr("UNAVAILABLE"));
    EXPECT_THAT(said, HasSubstr("rank 1 is lost"));
  }
  EXPECT_LT(absl::Now() - killed_at, absl::Seconds(10));
}

TEST_P(NetworkProcessTest, AKilledRankWakesAParkedSurvivor) {
  shm::Processes processes(
      2, [factory = GetParam()](const TransportOptions& options) -> std::string {
        auto end = shm::MakeEnd(options, factory);
        if (!end.ok()) return end.status().ToString();
        shm::Processes::Mark(options.rank.value());
        if (options.rank == Rank(1)) {
          while (true) pause();
        }
        float value = 0;
        const auto recv = Recv(*end->communicator, {&value, 1, DType::kFloat32}, Rank(1));
        return recv.ok() ? Await(*end->communicator, *recv, Soon()).ToString()
                         : recv.status().ToString();
      });
  processes.AwaitMark(0, 1);
  processes.AwaitMark(1, 1);
  kill(processes.pid(1), SIGKILL);
  const absl::Time killed_at = absl::Now();
  EXPECT_THAT(processes.Join(0), HasSubstr("rank 1 is lost"));
  EXPECT_LT(absl::Now() - killed_at, absl::Seconds(10));
}

// Sends to and receives from the other of ranks 0 and 1, `turns` times.
absl::Status Exchange(Communicator& communicator, int turns) {
  const int32_t rank = communicator.rank().value();
  float value = 0;
  const Tensor tensor{&value, 1, DType::kFloat32};
  absl::Status status;
  for (int turn = 0; turn < turns && status.ok(); ++turn) {
    const auto launched = turn % 2 == rank ? Send(communicator, tensor, Rank(1 - rank))
                                           : Recv(communicator, tensor, Rank(1 - rank));
    status = launched.ok() ? Await(communicator, *launched, Soon()) : launched.status();
  }
  return status;
}

// Has both end with the same exchange.
absl::Status TakeFromRankZero(Communicator& communicator, float& value) {
  const Tensor tensor{&value, 1, DType::kFloat32};
  const auto launched = communicator.rank() == Rank(0) ? Send(communicator, tensor, Rank(1))
                                                       : Recv(communicator, tensor, Rank(0));
  return launched.ok() ? Await(communicator, *launched, Soon()) : launched.status();
}

// Rank 2 ends as a process does whose memory a user holds: nothing of it is taken down.
TEST_P(NetworkProcessTest, ARankThatSaidGoodbyeEndsOnlyWhatNeedsIt) {
  shm::Processes processes(
      3, [factory = GetParam()](const TransportOptions& options) -> std::string {
        auto end = shm::MakeEnd(options, factory);
        if (!end.ok()) return end.status().ToString();
        if (options.rank == Rank(2)) {
          end->transport->SayGoodbye();
          new shm::End(*std::move(end));
          return "";
        }
        raise(SIGSTOP);
        // Longer than a broken connection is only suspicious.
        const absl::Time until = absl::Now() + absl::Seconds(1);
        for (float goes_on = 1; goes_on != 0;) {
          absl::Status status = Exchange(*end->communicator, 100);
          goes_on = absl::Now() < until ? 1 : 0;
          if (status.ok()) status = TakeFromRankZero(*end->communicator, goes_on);
          if (!status.ok()) return absl::StrCat("between two: ", status.ToString());
        }
        float value = 0;
        const auto recv = Recv(*end->communicator, {&value, 1, DType::kFloat32}, Rank(2));
        return recv.ok() ? Await(*end->communicator, *recv, Soon()).ToString()
                         : recv.status().ToString();
      });
  EXPECT_THAT(processes.Join(2), IsEmpty());
  for (const int rank : {0, 1}) {
    int state = 0;
    waitpid(processes.pid(rank), &state, WUNTRACED);
    ASSERT_TRUE(WIFSTOPPED(state)) << rank;
    kill(processes.pid(rank), SIGCONT);
  }
  for (const int rank : {0, 1}) {
    const std::string said = processes.Join(rank);
    EXPECT_THAT(said, HasSubstr("rank 2 has left"));
    EXPECT_THAT(said, Not(HasSubstr("between two")));
  }
}

// A stopped rank's kernel still acknowledges: nothing but the caller's deadline can end the wait.
TEST_P(NetworkProcessTest, AStoppedRankMeetsTheDeadline) {
  shm::Processes processes(2, [factory = GetParam()](const TransportOptions& options) {
    return ShiftForEver(options, factory, absl::Seconds(3));
  });
  processes.AwaitMark(0, 3);
  kill(processes.pid(1), SIGSTOP);
  const absl::Time stopped_at = absl::Now();
  const std::string said = processes.Join(0);
  EXPECT_LT(absl::Now() - stopped_at, absl::Seconds(15));
  EXPECT_THAT(said, AnyOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("UNAVAILABLE")));
  EXPECT_THAT(said, HasSubstr("1"));
}

TEST_P(NetworkProcessTest, AWrongTokenIsRefusedByName) {
  shm::Processes processes(
      3, [factory = GetParam()](const TransportOptions& options) -> std::string {
        TransportOptions mine = options;
        if (mine.rank == Rank(2)) mine.job_token = "tokem";
        const absl::Status status = factory(mine).status();
        if (!absl::IsUnauthenticated(status)) return status.ToString();
        const bool names_it =
            absl::StrContains(status.message(), mine.rank == Rank(2) ? "rank 0" : "rank 2");
        return names_it ? "" : std::string(status.message());
      });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST_P(NetworkProcessTest, AnUnknownInterfaceIsNamed) {
  shm::Processes processes(1,
                           [factory = GetParam()](const TransportOptions& options) -> std::string {
                             TransportOptions mine = options;
                             mine.interface = "no_such0";
                             return factory(mine).status().ToString();
                           });
  EXPECT_THAT(processes.JoinAll(), HasSubstr("interface: 'no_such0' is no "));
}

// A TCP socket of a process that listens, as the kernel tells it.
struct Listener {
  in_addr address;
  uint16_t port;
};

std::set<std::string> SocketInodes(pid_t pid) {
  std::set<std::string> inodes;
  for (int fd = 0; fd < 1024; ++fd) {
    char target[64] = {};
    const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
    if (readlink(path.c_str(), target, sizeof target - 1) <= 0) continue;
    if (absl::StartsWith(target, "socket:[")) {
      inodes.insert(std::string(target + 8, std::strlen(target) - 9));
    }
  }
  return inodes;
}

std::vector<Listener> ListenersOf(pid_t pid) {
  const std::set<std::string> inodes = SocketInodes(pid);
  std::vector<Listener> listeners;
  std::ifstream table("/proc/net/tcp");
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() < 10 || fields[3] != "0A" || !inodes.contains(fields[9])) continue;
    const std::vector<std::string> local = absl::StrSplit(fields[1], ':');
    uint32_t address = 0;
    uint32_t port = 0;
    if (absl::SimpleHexAtoi(local[0], &address) && absl::SimpleHexAtoi(local[1], &port)) {
      listeners.push_back({{address}, static_cast<uint16_t>(port)});
    }
  }
  return listeners;
}

// Waits until the process has stopped itself.
void AwaitStop(pid_t pid) { waitpid(pid, nullptr, WUNTRACED); }

// Whether the process has a socket that IPv6 reaches.
bool HasV6Socket(pid_t pid) {
  const std::set<std::string> inodes = SocketInodes(pid);
  std::ifstream table("/proc/net/tcp6");
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() > 9 && inodes.contains(fields[9])) return true;
  }
  return false;
}

// The ports of a rank that waits for another one to come.
std::vector<Listener> AwaitListeners(pid_t pid) {
  const absl::Time until = Soon();
  std::vector<Listener> listeners;
  while (listeners.empty() && absl::Now() < until) listeners = ListenersOf(pid);
  return listeners;
}

// Of two ranks the lower one connects over TCP, so the higher one listens.
TEST_P(NetworkProcessTest, ListensOnLoopbackOnlyAndOnlyWhileItOpens) {
  shm::Processes processes(2, [factory = GetParam()](const TransportOptions& options) {
    if (options.rank == Rank(0)) raise(SIGSTOP);
    return ShiftForEver(options, factory, absl::Seconds(40));
  });
  const std::vector<Listener> listeners = AwaitListeners(processes.pid(1));
  EXPECT_THAT(listeners, Not(IsEmpty()));
  for (const Listener& listener : listeners) {
    EXPECT_STREQ(inet_ntoa(listener.address), "127.0.0.1");
  }
  EXPECT_FALSE(HasV6Socket(processes.pid(1)));
  AwaitStop(processes.pid(0));
  kill(processes.pid(0), SIGCONT);
  processes.AwaitMark(0, 1);
  EXPECT_TRUE(ListenersOf(processes.pid(0)).empty());
  EXPECT_TRUE(ListenersOf(processes.pid(1)).empty());
}

// A connection that does not wait for long; the sockets are kept to be half open.
Descriptor Knock(const Listener& listener) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr = listener.address;
  address.sin_port = htons(listener.port);
  connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return socket;
}

// Bytes that strangers might send: noise, the beginning of a protocol, nothing.
std::string Garbage(std::mt19937& random) {
  std::string bytes(random() % 4 == 0 ? 0 : random() % 3000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  if (random() % 3 == 0) bytes = "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes;
  return bytes;
}

// Knocks `rounds` times at each door; every second stranger stays, half open.
void KnockAll(const std::vector<Listener>& listeners, bool with_magic, int rounds,
              std::mt19937& random, std::vector<Descriptor>* half_open) {
  const std::string magic("\x78\x56\x34\x12\xbe\xba\xfe\xca", 8);
  for (int round = 0; round < rounds; ++round) {
    for (const Listener& listener : listeners) {
      Descriptor knock = Knock(listener);
      const std::string bytes = (with_magic ? magic : "") + Garbage(random);
      // Refused is as good as taken: what matters is that the ranks go on.
      [[maybe_unused]] const ssize_t sent =
          send(knock.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (random() % 2 == 0) half_open->push_back(std::move(knock));
    }
  }
}

// Strangers that do not know UCX's magic number knock while the ranks open, others as well when
// they are at work: that number would bring UCX down.
TEST_P(NetworkProcessTest, WorkGoesOnWhileStrangersKnock) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  shm::Processes processes(2, [factory = GetParam()](const TransportOptions& options) {
    if (options.rank == Rank(0)) raise(SIGSTOP);
    return ShiftForEver(options, factory, absl::Seconds(40));
  });
  const std::vector<Listener> listeners = AwaitListeners(processes.pid(1));
  EXPECT_THAT(listeners, Not(IsEmpty()));
  std::vector<Descriptor> half_open;
  KnockAll(listeners, /*with_magic=*/false, 10, random, &half_open);
  AwaitStop(processes.pid(0));
  kill(processes.pid(0), SIGCONT);
  processes.AwaitMark(0, 2);
  KnockAll(listeners, /*with_magic=*/true, 10, random, &half_open);
  processes.AwaitMark(0, 6);
  processes.AwaitMark(1, 6);
}

// The first bytes of functions that UCX would patch to see memory come and go.
std::string MemoryFunctions() {
  std::string bytes;
  for (void* function : {reinterpret_cast<void*>(&mmap), reinterpret_cast<void*>(&munmap),
                         reinterpret_cast<void*>(&madvise), reinterpret_cast<void*>(&sbrk)}) {
    bytes.append(static_cast<const char*>(function), 16);
  }
  return bytes;
}

TEST(UcxTest, LeavesMemoryCallsAndSignalsAlone) {
  shm::Processes processes(2, [](const TransportOptions& options) -> std::string {
    const std::string before = MemoryFunctions();
    auto end = shm::MakeEnd(options, MakeUcxTransport);
    if (!end.ok()) return end.status().ToString();
    std::vector<float> out(kCount, 1);
    std::vector<float> in(kCount);
    const absl::Status status = Shift(*end->communicator, out, in, Soon());
    if (!status.ok()) return status.ToString();
    if (MemoryFunctions() != before) return "memory calls were patched";
    for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
      struct sigaction action = {};
      sigaction(number, nullptr, &action);
      if (action.sa_handler != SIG_DFL) return absl::StrCat("signal ", number, " is handled");
    }
    return "";
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

}  // namespace
}  // namespace pelton::network
