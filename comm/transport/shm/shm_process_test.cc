// Ranks as processes: what threads cannot show.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
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
#include "comm/transport/shm/remote_memory.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// Value of element i of rank r: sums of them are exact.
float ValueOf(int rank, size_t i) { return static_cast<float>((i % 1000) * (rank + 1)); }

// "" if an allreduce of `data`, into itself or into `result`, gives the sum.
std::string CheckSum(Communicator& communicator, float* data, size_t count,
                     float* result = nullptr) {
  const int rank = communicator.rank().value();
  const int n = communicator.world_size().value();
  for (size_t i = 0; i < count; ++i) data[i] = ValueOf(rank, i);
  const Tensor tensor{data, count, DType::kFloat32};
  const bool is_in_place = result == nullptr;
  if (is_in_place) result = data;
  const Tensor target{result, count, DType::kFloat32};
  auto completion = AllReduce(communicator, tensor, target, ReduceOp::kSum);
  if (!completion.ok()) return std::string(completion.status().message());
  const absl::Status status = Await(communicator, *completion, Soon());
  if (!status.ok()) return std::string(status.message());
  for (size_t i = 0; i < count; ++i) {
    const float want = static_cast<float>(i % 1000) * static_cast<float>(n * (n + 1) / 2);
    if (result[i] != want) return absl::StrCat("element ", i, " of ", count, " is ", result[i]);
    if (!is_in_place && data[i] != ValueOf(rank, i)) {
      return absl::StrCat("element ", i, " of the source, of ", count, ", became ", data[i]);
    }
  }
  return "";
}

constexpr size_t kCounts[] = {1, 1000, 4096, 100'001, 1 << 20, (3 << 20) + 7};

TEST(ShmProcessTest, AllReduceInRegionsGivesTheSum) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    auto region = Region::Create((size_t{4} << 20) * sizeof(float), "test").value();
    if (!end->communicator->Register(*region).ok()) return "Register";
    for (const size_t count : kCounts) {
      const std::string wrong =
          CheckSum(*end->communicator, reinterpret_cast<float*>(region->data()) + 3, count);
      if (!wrong.empty()) return wrong;
    }
    return "";
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(ShmProcessTest, AllReduceOfPrivateMemoryGivesTheSum) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    std::vector<float> data(size_t{4} << 20);
    std::vector<float> result(data.size());
    for (const size_t count : kCounts) {
      std::string wrong = CheckSum(*end->communicator, data.data() + 1, count);
      if (wrong.empty()) {
        wrong = CheckSum(*end->communicator, data.data(), count, result.data() + 5);
      }
      if (!wrong.empty()) return wrong;
    }
    return "";
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(ShmProcessTest, ARankMayBeInARegionAndAnotherInPrivateMemory) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    auto region = Region::Create((size_t{4} << 20) * sizeof(float), "test").value();
    std::vector<float> own(size_t{4} << 20);
    if (!end->communicator->Register(*region).ok()) return "Register";
    float* const shared = reinterpret_cast<float*>(region->data());
    for (const size_t count : kCounts) {
      float* const data = options.rank == Rank(0) ? shared : own.data();
      std::string wrong = CheckSum(*end->communicator, data, count);
      // From shared memory into private memory, and the other way round on the other rank.
      float* const result = data == shared ? own.data() : shared;
      if (wrong.empty()) wrong = CheckSum(*end->communicator, data, count, result);
      if (!wrong.empty()) return wrong;
    }
    end->communicator->Deregister(region->id());
    return CheckSum(*end->communicator, shared, size_t{1} << 20);
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// "" if rank 1 gets what rank 0 broadcasts and sends from private memory.
std::string CheckCopies(Communicator& communicator, std::vector<float>& data) {
  const bool is_first = communicator.rank() == Rank(0);
  const Tensor tensor{data.data(), data.size(), DType::kFloat32};
  for (int turn = 1; turn <= 2; ++turn) {
    std::fill(data.begin(), data.end(), is_first ? static_cast<float>(turn) : 0.0f);
    const absl::StatusOr<Completion> completion = turn == 1
                                                      ? Broadcast(communicator, tensor, Rank(0))
                                                  : is_first ? Send(communicator, tensor, Rank(1))
                                                             : Recv(communicator, tensor, Rank(0));
    if (!completion.ok()) return std::string(completion.status().message());
    const absl::Status status = Await(communicator, *completion, Soon());
    if (!status.ok()) return std::string(status.message());
    for (const float value : data) {
      if (value != static_cast<float>(turn)) return absl::StrCat("turn ", turn, ": ", value);
    }
  }
  return "";
}

TEST(ShmProcessTest, MemoryThatPeersMayNotReadIsStaged) {
  static const uint64_t secret = 17;  // at the same address in every forked rank
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    ForbidReaders();
    const auto pids = options.bootstrap->AllGather("pid", absl::StrCat(getpid()), Soon());
    int peer = 0;
    if (!absl::SimpleAtoi(pids.value()[1 - options.rank.value()], &peer)) return "no pid";
    uint64_t read = 0;
    const absl::Status forbidden = ReadMemory(peer, reinterpret_cast<uintptr_t>(&secret),
                                              reinterpret_cast<std::byte*>(&read), sizeof read);
    if (!absl::IsPermissionDenied(forbidden)) return absl::StrCat("could read ", read);
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    std::vector<float> data(size_t{3} << 20);
    const std::string wrong = CheckSum(*end->communicator, data.data(), data.size());
    return wrong.empty() ? CheckCopies(*end->communicator, data) : wrong;
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// Bytes of this process's mappings of the memfds with this name.
uint64_t MappedBytes(absl::string_view name) {
  std::ifstream maps("/proc/self/maps");
  uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, absl::StrCat("/memfd:", name, " "))) continue;
    const std::vector<std::string> ends =
        absl::StrSplit(line.substr(0, line.find(' ')), absl::MaxSplits('-', 1));
    bytes += std::stoull(ends[1], nullptr, 16) - std::stoull(ends[0], nullptr, 16);
  }
  return bytes;
}

// What rank 0 sends from private memory that nobody may read is mapped by it and by rank 1, and by
// nobody for longer than it takes.
std::string SendAndCountMappings(const TransportOptions& options) {
  ForbidReaders();
  auto end = MakeEnd(options, MakeShmTransport);
  if (!end.ok()) return std::string(end.status().message());
  std::vector<float> data(size_t{1} << 20, 1.0f);
  const Tensor tensor{data.data(), data.size(), DType::kFloat32};
  absl::StatusOr<Completion> launched = absl::NotFoundError("nothing is launched");
  if (options.rank == Rank(0)) launched = Send(*end->communicator, tensor, Rank(1));
  // Its messages come after those that the send needs.
  auto second = end->transport->Open(CommunicatorId(2), Group::World(WorldSize(3)), Soon());
  if (!second.ok()) return std::string(second.status().message());
  const uint64_t mapped = MappedBytes("pelton-send");
  const uint64_t want = options.rank == Rank(2) ? 0 : data.size() * sizeof(float);
  if (mapped != want) return absl::StrCat(mapped, " bytes are mapped");
  if (options.rank == Rank(1)) launched = Recv(*end->communicator, tensor, Rank(0));
  if (options.rank == Rank(2)) return "";
  if (!launched.ok()) return std::string(launched.status().message());
  return std::string(Await(*end->communicator, *launched, Soon()).message());
}

TEST(ShmProcessTest, ACopyOfWhatIsSentIsMappedByItsReceiverAlone) {
  Processes processes(3, SendAndCountMappings);
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(ShmProcessTest, StagedTensorsAreGivenBackWithTheirOperation) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    ForbidReaders();
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    for (const size_t count : {size_t{1} << 20, size_t{5} << 20, size_t{1} << 18}) {
      std::vector<float> data(count, 1.0f + options.rank.value());
      const auto launched =
          Broadcast(*end->communicator, {data.data(), count, DType::kFloat32}, Rank(1));
      if (!launched.ok()) return std::string(launched.status().message());
      const absl::Status status = Await(*end->communicator, *launched, Soon());
      if (!status.ok()) return std::string(status.message());
      if (data.front() != 2 || data.back() != 2) return "wrong values";
      // The other rank hears of its end a little later.
      const uint64_t kept = options.rank == Rank(1) ? MappedBytes("pelton-staging") : 0;
      if (kept > 4 << 20) return absl::StrCat(kept, " bytes stay staged after ", count);
    }
    return "";
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// The inodes of the sockets that a process holds.
std::set<std::string> SocketsOf(pid_t pid) {
  std::set<std::string> inodes;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"))) {
    std::error_code closed_meanwhile;
    const std::string target = std::filesystem::read_symlink(entry.path(), closed_meanwhile);
    if (absl::StartsWith(target, "socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// How many of these Unix sockets the kernel still has.
int StillThere(const std::set<std::string>& inodes) {
  std::ifstream sockets("/proc/net/unix");
  int count = 0;
  for (std::string line; std::getline(sockets, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() > 6 && inodes.contains(fields[6])) ++count;
  }
  return count;
}

TEST(ShmProcessTest, AKilledRankIsNamedByAllSurvivorsAndNothingStays) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    const size_t count = size_t{16} << 20;
    auto region = Region::Create(count * sizeof(float), "test").value();
    if (!end->communicator->Register(*region).ok()) return "Register";
    const Tensor tensor{region->data(), count, DType::kFloat32};
    Processes::Mark(options.rank.value());
    while (true) {  // until rank 1 is killed
      auto completion = AllReduce(*end->communicator, tensor, tensor, ReduceOp::kMax);
      const absl::Status status =
          completion.ok() ? Await(*end->communicator, *completion, Soon()) : completion.status();
      if (!status.ok()) return std::string(status.message());
      Processes::Mark(options.rank.value());
    }
  });
  processes.AwaitMark(1, 4);
  const std::set<std::string> sockets = SocketsOf(processes.pid(1));
  EXPECT_EQ(StillThere(sockets), 2);
  const absl::Time killed_at = absl::Now();
  kill(processes.pid(1), SIGKILL);
  const std::string who = absl::StrCat("rank 1 (pid ", processes.pid(1), ") died");
  EXPECT_THAT(processes.Join(0), HasSubstr(who));
  EXPECT_THAT(processes.Join(2), HasSubstr(who));
  EXPECT_LT(absl::Now() - killed_at, absl::Seconds(10));
  EXPECT_EQ(processes.Join(1), "rank 1: signal 9");
  EXPECT_EQ(StillThere(sockets), 0);
}

// What rank 0 does when rank 1 stops in the middle of an allreduce, and rank 1 itself.
std::string ReduceUntilItFails(const TransportOptions& options) {
  auto end = MakeEnd(options, MakeShmTransport);
  if (!end.ok()) return std::string(end.status().message());
  const bool is_first = options.rank == Rank(0);
  const size_t count = size_t{8} << 20;
  auto region = Region::Create(count * sizeof(float), "test").value();
  if (!end->communicator->Register(*region).ok()) return "Register";
  float* const data = reinterpret_cast<float*>(region->data());
  absl::Status status;
  while (status.ok()) {
    const Tensor tensor{data, count, DType::kFloat32};
    auto completion = AllReduce(*end->communicator, tensor, tensor, ReduceOp::kMax);
    status = completion.ok()
                 ? Await(*end->communicator, *completion, absl::Now() + absl::Seconds(5))
                 : completion.status();
    Processes::Mark(options.rank.value());
  }
  // It has failed, so the memory is this rank's again, whatever rank 1 does when it goes on.
  std::fill_n(data, count, 7.0f);
  if (is_first) Processes::Mark(2);
  const auto both = options.bootstrap->AllGather("both are through", "", Soon());
  if (!both.ok() || !is_first) return std::string(both.status().message());
  const auto wrong = std::count_if(data, data + count, [](float value) { return value != 7.0f; });
  if (wrong > 0) return absl::StrCat(wrong, " elements were overwritten");
  // The region serves on, like private memory.
  auto alone = Group{{Rank(0)}, Generation(2)};
  auto opened = end->transport->Open(CommunicatorId(9), alone, Soon());
  if (!opened.ok()) return std::string(opened.status().message());
  if (!(*opened)->Register(*region).ok()) return "Register again";
  return CheckSum(**opened, data, 1000);
}

TEST(ShmProcessTest, ARankThatStoppedWhileItWroteFindsNothingOfOthersWhenItGoesOn) {
  for (uint32_t turn = 0; turn < 3; ++turn) {
    Processes processes(2, ReduceUntilItFails);
    processes.AwaitMark(1, 3 + turn);
    kill(processes.pid(1), SIGSTOP);
    processes.AwaitMark(2, 1);
    kill(processes.pid(1), SIGCONT);
    EXPECT_THAT(processes.JoinAll(), IsEmpty());
  }
}

// Of a rank that stops when it uses it.
Region* stopping_region = nullptr;

void StopInTheMiddle(int) {
  mprotect(stopping_region->data(), stopping_region->size_bytes(), PROT_READ | PROT_WRITE);
  raise(SIGSTOP);
}

// "" if rank 0 names rank 1 while that stands still in the middle of one of an allreduce's tasks.
std::string NameTheStopped(const TransportOptions& options) {
  auto end = MakeEnd(options, MakeShmTransport);
  if (!end.ok()) return std::string(end.status().message());
  Communicator& communicator = *end->communicator;
  const size_t count = size_t{1} << 20;
  auto region = Region::Create(count * sizeof(float), "test").value();
  if (!communicator.Register(*region).ok()) return "Register";
  if (options.rank == Rank(1)) {
    stopping_region = region.get();
    signal(SIGSEGV, StopInTheMiddle);
    mprotect(region->data(), region->size_bytes(), PROT_NONE);
  }
  const Tensor tensor{region->data(), count, DType::kFloat32};
  auto reduced = AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
  if (!reduced.ok()) return std::string(reduced.status().message());
  std::vector<Rank> missing = {Rank(1)};
  if (options.rank == Rank(0)) {
    raise(SIGSTOP);  // until rank 1 stands still
    while (communicator.Progress()) {
    }
    missing = communicator.Missing();
    Processes::Mark(0);
  }
  const absl::Status status = Await(communicator, *reduced, Soon());
  if (!status.ok()) return std::string(status.message());
  return missing == std::vector<Rank>{Rank(1)} ? "" : absl::StrCat("names ", missing.size());
}

TEST(ShmProcessTest, ARankThatStopsInTheMiddleOfATaskIsNamed) {
  Processes processes(2, NameTheStopped);
  for (const int rank : {0, 1}) {
    int state = 0;
    waitpid(processes.pid(rank), &state, WUNTRACED);
    ASSERT_TRUE(WIFSTOPPED(state)) << rank;
  }
  kill(processes.pid(0), SIGCONT);
  processes.AwaitMark(0, 1);
  kill(processes.pid(1), SIGCONT);
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// Rank 2 dies, so that rank 0 has what it sends back before rank 1 has read it.
TEST(ShmProcessTest, WhatItsSenderTookBackIsNotReceived) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    const bool sends = options.rank == Rank(0);
    std::vector<float> data(size_t{4} << 20, sends ? 1.0f : 0.0f);
    const Tensor tensor{data.data(), data.size(), DType::kFloat32};
    Processes::Mark(options.rank.value());
    while (options.rank == Rank(2)) pause();
    const absl::StatusOr<Completion> launched = sends ? Send(*end->communicator, tensor, Rank(1))
                                                      : Recv(*end->communicator, tensor, Rank(0));
    if (!launched.ok()) return std::string(launched.status().message());
    Processes::Mark(options.rank.value());
    if (!sends) raise(SIGSTOP);
    const absl::Status status = Await(*end->communicator, *launched, Soon());
    if (sends) {
      std::fill(data.begin(), data.end(), 7.0f);
      Processes::Mark(0);
      while (true) pause();  // its memory stays
    }
    return status.ok() ? absl::StrCat("received ", data.back()) : "";
  });
  processes.AwaitMark(2, 1);
  int state = 0;
  waitpid(processes.pid(1), &state, WUNTRACED);
  ASSERT_TRUE(WIFSTOPPED(state));
  processes.AwaitMark(0, 2);  // it sends
  kill(processes.pid(2), SIGKILL);
  processes.AwaitMark(0, 3);
  kill(processes.pid(1), SIGCONT);
  EXPECT_THAT(processes.Join(1), IsEmpty());
}

TEST(ShmProcessTest, AKilledRankWakesAParkedSurvivorThoughItsChildrenLive) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    Processes::Mark(options.rank.value());
    if (options.rank == Rank(1)) {
      // A data loader's worker: inherits the sockets, and outlives its parent for a while.
      if (fork() == 0) alarm(20);
      while (true) pause();
    }
    const absl::StatusOr<Completion> completion = Barrier(*end->communicator);
    if (!completion.ok()) return std::string(completion.status().message());
    Processes::Mark(0);
    return std::string(Await(*end->communicator, *completion, Soon()).message());
  });
  processes.AwaitMark(0, 2);
  processes.AwaitMark(1, 1);
  kill(processes.pid(1), SIGKILL);
  const absl::Time killed_at = absl::Now();
  EXPECT_THAT(processes.Join(0), HasSubstr("rank 1"));
  EXPECT_LT(absl::Now() - killed_at, absl::Seconds(10));
}

TEST(ShmProcessTest, ARankThatLeavesInGoodOrderIsNamed) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    std::vector<float> data(1000);
    const std::string wrong = CheckSum(*end->communicator, data.data(), data.size());
    if (!wrong.empty() || options.rank == Rank(1)) return wrong;
    const absl::StatusOr<Completion> completion = Barrier(*end->communicator);
    if (!completion.ok()) return std::string(completion.status().message());
    return std::string(Await(*end->communicator, *completion, Soon()).message());
  });
  EXPECT_THAT(processes.Join(0), HasSubstr("has left"));
  EXPECT_THAT(processes.Join(1), IsEmpty());
}

// What two ranks do between them does not need a third that has left; what all do does.
TEST(ShmProcessTest, ARankThatLeavesEndsOnlyWhatNeedsIt) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    Communicator& communicator = *end->communicator;
    std::vector<float> data(1000);
    const std::string wrong = CheckSum(communicator, data.data(), data.size());
    if (!wrong.empty() || options.rank == Rank(2)) return wrong;
    const Rank peer(1 - options.rank.value());
    const Tensor tensor{data.data(), data.size(), DType::kFloat32};
    absl::Status status;
    for (int i = 0; i < 5000 && status.ok(); ++i) {
      const absl::StatusOr<Completion> done = options.rank == Rank(i % 2)
                                                  ? Send(communicator, tensor, peer)
                                                  : Recv(communicator, tensor, peer);
      status = done.ok() ? Await(communicator, *done, Soon()) : done.status();
    }
    const absl::StatusOr<Completion> completion = Barrier(communicator);
    if (!completion.ok()) return std::string(completion.status().message());
    return std::string(Await(communicator, *completion, Soon()).message());
  });
  for (int rank : {0, 1}) {
    const std::string text = processes.Join(rank);
    EXPECT_THAT(text, HasSubstr("has left"));
    EXPECT_THAT(text, Not(HasSubstr("between two")));
  }
  EXPECT_THAT(processes.Join(2), IsEmpty());
}

}  // namespace
}  // namespace pelton::shm
