// A rank is killed while another one reads its private memory, which the kernel takes away before
// it closes the dead one's sockets.
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/neighbors.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/pipeline/weight_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using ::testing::EndsWith;

constexpr size_t kCount = size_t{1} << 20;  // is read in several pieces
constexpr int32_t kTagOfNobody = 77;
constexpr unsigned kLongestSeconds = 30;

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(kLongestSeconds); }

// Rank 0 gets what rank 1 has.
using Exchange = absl::StatusOr<Completion> (*)(Communicator&, Tensor source, Tensor target);

absl::StatusOr<Completion> SendAndReceive(Communicator& communicator, Tensor source,
                                          Tensor target) {
  const bool sends = communicator.rank() == Rank(1);
  return sends ? Send(communicator, source, Rank(0)) : Recv(communicator, target, Rank(1));
}
absl::StatusOr<Completion> ReadTheRoots(Communicator& communicator, Tensor source, Tensor target) {
  const bool is_root = communicator.rank() == Rank(1);
  return Broadcast(communicator, is_root ? source : target, Rank(1));
}
absl::StatusOr<Completion> AverageOfBoth(Communicator& communicator, Tensor source, Tensor target) {
  const Rank other(1 - communicator.rank().value());
  const std::shared_ptr<const WeightTable> table =
      WeightTable::Create({.own = 0.5, .sources = {{other, 0.5}}, .destinations = {{other, 1}}})
          .value();
  return NeighborAllReduce(communicator, source, target, *table);
}

// What one process waits for and another one gives, once. Threads: any. Owns: both ends, which
// processes that are forked later have, too.
class Signal {
 public:
  Signal() { PELTON_CHECK(pipe(ends_.data()) == 0); }
  ~Signal() {
    for (const int end : ends_) close(end);
  }
  // False: it did not come. Blocks: until then, or for kLongestSeconds. Calls nothing but the
  // kernel, and so does Give.
  bool Await() const {
    pollfd end{ends_[0], POLLIN, 0};
    int ready = -1;
    do {
      ready = poll(&end, 1, kLongestSeconds * 1000);
    } while (ready < 0 && errno == EINTR);
    char byte = 0;
    return ready == 1 && read(ends_[0], &byte, 1) == 1;
  }
  void Give() const {
    while (write(ends_[1], "", 1) < 0) {
    }
  }

 private:
  std::array<int, 2> ends_;
};

// A process that keeps the sockets of the calling one open until `ends`. No handler of a fork
// closes them in it.
void ForkAHolder(const Signal& ends) {
  if (syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr) != 0) return;
  _exit(ends.Await() ? 0 : 1);
}

// "": nobody has ended the communicator.
std::string EndOf(Communicator& communicator) {
  return std::string(communicator.FindSender(kTagOfNobody).status().message());
}

// Rank 1, which is killed, and what rank 0 finds out.
struct Death {
  Exchange exchange;
  Signal is_dead;       // and nobody reads its memory any more
  Signal may_be_known;  // by its sockets, which a process holds
  bool is_known_first;  // before rank 0 reads there again
};

std::string RunRank(const Death& death, const TransportOptions& options) {
  auto end = MakeEnd(options, MakeShmTransport);
  if (!end.ok()) return std::string(end.status().message());
  Communicator& communicator = *end->communicator;
  const bool dies = options.rank == Rank(1);
  std::vector<float> source(kCount, dies ? 1.0f : 3.0f);
  std::vector<float> target(kCount);
  absl::StatusOr<Completion> launched =
      death.exchange(communicator, {source.data(), kCount, DType::kFloat32},
                     {target.data(), kCount, DType::kFloat32});
  if (!launched.ok()) return std::string(launched.status().message());
  if (dies) {
    ForkAHolder(death.may_be_known);
    alarm(kLongestSeconds);  // signal 14 ends it where nobody kills it
    Processes::Mark(1);
    while (true) pause();
  }
  const absl::Time deadline = Soon();
  while (target.front() == 0 && Clock::Real().Now() < deadline) communicator.Progress();
  if (target.front() == 0) return "nothing of rank 1's memory has come in";
  Processes::Mark(0);
  if (!death.is_dead.Await()) return "nobody tells that rank 1 is dead";
  if (target.back() != 0) return "it has read everything already";
  if (!death.is_known_first) {
    for (int look = 0; look < 100; ++look) communicator.Progress();
    const std::string reason = EndOf(communicator);
    if (!reason.empty()) return absl::StrCat("before anybody could know of the death: ", reason);
  }
  death.may_be_known.Give();
  while (death.is_known_first && EndOf(communicator).empty()) {
    if (Clock::Real().Now() > deadline) return "nobody tells of the death";
    sched_yield();
  }
  return std::string(Await(communicator, *launched, deadline).message());
}

void ExpectNamed(Exchange exchange) {
  for (const bool is_known_first : {false, true}) {
    SCOPED_TRACE(absl::StrCat("known first: ", is_known_first));
    const Death death{exchange, {}, {}, is_known_first};
    Processes processes(
        2, [&death](const TransportOptions& options) { return RunRank(death, options); });
    processes.AwaitMark(1, 1);
    processes.AwaitMark(0, 1);
    const pid_t killed = processes.pid(1);
    kill(killed, SIGKILL);
    EXPECT_EQ(processes.Join(1), "rank 1: signal 9");
    death.is_dead.Give();
    EXPECT_THAT(processes.Join(0), EndsWith(absl::StrCat("rank 1 (pid ", killed, ") died")));
  }
}

TEST(DeathsProcessTest, ASenderThatIsKilledWhileItsMemoryIsReadIsNamed) {
  ExpectNamed(SendAndReceive);
}
TEST(DeathsProcessTest, ARootThatIsKilledWhileItsMemoryIsReadIsNamed) { ExpectNamed(ReadTheRoots); }
TEST(DeathsProcessTest, ANeighborThatIsKilledWhileItsMemoryIsReadIsNamed) {
  ExpectNamed(AverageOfBoth);
}

}  // namespace
}  // namespace pelton::shm
