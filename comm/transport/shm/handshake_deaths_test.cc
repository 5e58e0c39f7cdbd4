// A rank dies before each of its system calls with which the others have to do while they meet. The
// code is the product's, in processes; the calls are counted here.
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "comm/transport/shm/handshake.h"
#include "comm/transport/shm/test_processes.h"
#include "comm/transport/transport.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

enum class Call : uint32_t { kConnect, kAccept, kSend, kReceive, kReadMemory };

// Of this process, as the body of its rank sets it. 0: it lives on.
uint32_t dies_at = 0;
bool is_counting = false;
std::vector<Call> calls;

void Step(Call call) {
  if (!is_counting) return;
  calls.push_back(call);
  if (calls.size() == dies_at) kill(getpid(), SIGKILL);
}

}  // namespace

// In place of the C library's.
extern "C" {
int connect(int socket, const sockaddr* address, socklen_t length) {
  Step(Call::kConnect);
  return static_cast<int>(syscall(SYS_connect, socket, address, length));
}
int accept4(int socket, sockaddr* address, socklen_t* length, int flags) {
  Step(Call::kAccept);
  return static_cast<int>(syscall(SYS_accept4, socket, address, length, flags));
}
ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  Step(Call::kSend);
  return syscall(SYS_sendmsg, socket, message, flags);
}
ssize_t recvmsg(int socket, msghdr* message, int flags) {
  Step(Call::kReceive);
  return syscall(SYS_recvmsg, socket, message, flags);
}
ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long local_count,
                         const iovec* remote, unsigned long remote_count,
                         unsigned long flags) noexcept {
  Step(Call::kReadMemory);
  return syscall(SYS_process_vm_readv, pid, local, local_count, remote, remote_count, flags);
}
}

namespace pelton::shm {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::IsEmpty;

constexpr int kRanks = 3;
// Whoever is connected to the dead one learns of that at once, and tells the others. Of a rank that
// has greeted nobody, and that nobody connects to, they learn at the deadline.
constexpr absl::Duration kLong = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(500);
constexpr absl::Duration kAtOnce = absl::Seconds(15);

// The ranks meet, and `mortal` dies before its call `at`. What each of them says.
std::vector<std::string> Meet(int mortal, uint32_t at, absl::Duration timeout) {
  Processes processes(kRanks, [=](const TransportOptions& given) {
    TransportOptions options = given;
    options.deadline = Clock::Real().Now() + timeout;
    is_counting = true;
    if (options.rank == Rank(mortal)) dies_at = at;
    const absl::Status met = MeetPeers(options).status();
    is_counting = false;
    return std::string(met.message());
  });
  std::vector<std::string> said;
  for (int rank = 0; rank < kRanks; ++rank) said.push_back(processes.Join(rank));
  return said;
}

// It connects to rank 0 and greets it, in two calls.
bool IsKnown(int mortal, uint32_t at) { return mortal != kRanks - 1 || at > 2; }

// Whether all but `mortal` have, which has then done all that they need.
bool HaveMet(int mortal, std::vector<std::string> said) {
  said.erase(said.begin() + mortal);
  return said == std::vector<std::string>(kRanks - 1);
}

class HandshakeDeathsTest : public ::testing::TestWithParam<int> {};

TEST_P(HandshakeDeathsTest, WhereverARankDiesTheOthersNameIt) {
  const int mortal = GetParam();
  const std::string killed = absl::StrCat("rank ", mortal, ": signal ", SIGKILL);
  const std::string named = absl::StrCat("rank(\\(s\\))? ([0-9], )*", mortal, "[ :,]");
  int deaths = 0;
  for (uint32_t at = 1;; ++at) {
    SCOPED_TRACE(absl::StrCat("rank ", mortal, " dies before its call ", at));
    ASSERT_LT(at, 100u) << "it has no end";
    const bool is_known = IsKnown(mortal, at);
    const absl::Time begun = Clock::Real().Now();
    const std::vector<std::string> said = Meet(mortal, at, is_known ? kLong : kShort);
    const absl::Duration most = is_known ? kAtOnce : kLong;
    EXPECT_LT(Clock::Real().Now() - begun, most) << absl::StrJoin(said, "; ");
    if (said[static_cast<size_t>(mortal)] != killed) {
      EXPECT_THAT(said, ::testing::Each(IsEmpty())) << "nobody has died";
      break;
    }
    ++deaths;
    int namings = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string& text = said[static_cast<size_t>(rank)];
      if (rank == mortal) continue;
      // Whoever has all that it needs has met it; the links then tell of the death. Whoever comes
      // when the third rank has ended, too, learns no more than that.
      const int third = kRanks - mortal - rank;
      const std::string late =
          absl::StrCat("rank ", third, "(: has ended| refused the connection)");
      EXPECT_THAT(text, AnyOf(IsEmpty(), ContainsRegex(named), ContainsRegex(late)));
      if (::testing::Value(text, ContainsRegex(named))) ++namings;
    }
    EXPECT_TRUE(namings > 0 || HaveMet(mortal, said)) << "nobody names it";
    if (HasFailure()) break;
  }
  // It connects, or accepts, greets, hears, proves, and checks the proof of two others.
  EXPECT_GE(deaths, 10);
}
INSTANTIATE_TEST_SUITE_P(OfEachRank, HandshakeDeathsTest, ::testing::Range(0, kRanks));

}  // namespace
}  // namespace pelton::shm
