// Windows between processes: what happens to the others when one stops or dies.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/transport/open_descriptors.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "comm/window/create_window.h"
#include "comm/window/peer_processes.h"
#include "comm/window/window.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using shm::Processes;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Time Soon(absl::Duration after = absl::Seconds(60)) { return Clock::Real().Now() + after; }

// What the test and its forked ranks share beside Processes' marks: phases that ranks wait for.
// Threads: any. Owns: nothing; the memory lives as long as the test's process.
class Phases {
 public:
  static void Begin() {
    void* const memory = mmap(nullptr, sizeof(std::atomic<uint32_t>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    word_ = new (memory) std::atomic<uint32_t>(0);
  }
  static void Next() {
    word_->fetch_add(1);
    FutexWake(word_, kAllSleepers, FutexScope::kShared);
  }
  static void Await(uint32_t phase) {
    for (uint32_t now = word_->load(); now < phase; now = word_->load()) {
      FutexWait(word_, now, absl::Seconds(1), FutexScope::kShared);
    }
  }

 private:
  static inline std::atomic<uint32_t>* word_ = nullptr;
};

// One rank's window over shared memory; all other ranks are its neighbours, both ways.
struct Rig {
  shm::End end;
  std::vector<double> tensor;
  std::unique_ptr<Window> window;

  static absl::StatusOr<std::unique_ptr<Rig>> Make(const TransportOptions& options,
                                                   uint64_t count) {
    auto rig = std::make_unique<Rig>();
    ASSIGN_OR_RETURN(rig->end, shm::MakeEnd(options, MakeShmTransport));
    ASSIGN_OR_RETURN(auto processes, PeerProcesses::Meet(*rig->end.communicator, Soon()));
    rig->tensor.assign(count, options.rank.value() + 1);
    WindowOptions window;
    window.name = "w";
    window.tensor = rig->Whole();
    window.shape = {static_cast<int64_t>(count)};
    for (int32_t peer = 0; peer < options.world_size.value(); ++peer) {
      if (Rank(peer) != options.rank) window.sources.emplace_back(peer);
    }
    window.destinations = window.sources;
    window.zero_init = true;
    ASSIGN_OR_RETURN(rig->window, CreateWindow(*rig->end.communicator, processes, window, Soon()));
    return rig;
  }
  Tensor Whole() { return {tensor.data(), tensor.size(), DType::kFloat64}; }
  std::vector<Neighbor> All(double weight) const {
    std::vector<Neighbor> all;
    for (const Rank rank : window->options().sources) all.push_back({rank, weight});
    return all;
  }
};

std::string TextOf(const absl::Status& status) {
  return status.ok() ? "" : std::string(status.message());
}

// A body that gets its window; texts are what went wrong.
Processes::Body With(uint64_t count, std::function<std::string(Rig&, int rank)> body) {
  return [count, body](const TransportOptions& options) -> std::string {
    absl::StatusOr<std::unique_ptr<Rig>> rig = Rig::Make(options, count);
    if (!rig.ok()) return TextOf(rig.status());
    return body(**rig, options.rank.value());
  };
}

TEST(WindowProcessTest, SumsAreExactBetweenFourProcesses) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 2000;
  // Every rank gives one of what it has to each other in each round, and collects in between.
  Processes processes(
      kRanks, With(700, [](Rig& rig, int rank) -> std::string {
        Window& window = *rig.window;
        std::vector<double> ones(700, 1);
        const std::vector<Neighbor> all = rig.All(1);
        for (int round = 0; round < kRounds; ++round) {
          const WindowAccess access{
              .with_p = true, .with_mutex = (round + rank) % 3 == 0, .deadline = Soon()};
          absl::Status status =
              window.Accumulate({ones.data(), 700, DType::kFloat64}, all, 1, access);
          if (status.ok() && round % 2 == 0) {
            status = window.UpdateFromInlets({.sources = all, .resets = true}, access);
          }
          if (!status.ok()) return TextOf(status);
        }
        const absl::Status met = AgreeOnStatus(*rig.end.communicator, absl::OkStatus(), Soon());
        if (!met.ok()) return TextOf(met);
        const absl::Status last = window.UpdateFromInlets({.sources = all, .resets = true}, {});
        if (!last.ok()) return TextOf(last);
        const double expected = rank + 1 + double{kRounds} * (kRanks - 1);
        for (const double element : rig.tensor) {
          if (element != expected) return absl::StrCat("element ", element, ", not ", expected);
        }
        return TextOf(AgreeOnStatus(*rig.end.communicator, absl::OkStatus(), Soon()));
      }));
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

constexpr size_t kKindsOfOperations = 4;
using Durations = std::array<absl::Duration, kKindsOfOperations>;  // by kind

// Towards all neighbours.
absl::Status Operate(Rig& rig, size_t kind) {
  const WindowAccess access{.with_p = true, .with_mutex = true, .deadline = Soon()};
  switch (kind) {
    case 0:
      return rig.window->Put(rig.Whole(), rig.All(1), 1, access);
    case 1:
      return rig.window->Accumulate(rig.Whole(), rig.All(1), 1, access);
    case 2:
      return rig.window->Get(rig.All(1), access);
    default:
      return rig.window->UpdateFromInlets({.sources = rig.All(0.25)}, access);
  }
}

absl::StatusOr<Durations> TimeOperations(Rig& rig) {
  Durations durations;
  for (size_t kind = 0; kind < kKindsOfOperations; ++kind) {
    const absl::Time begin = Clock::Real().Now();
    RETURN_IF_ERROR(Operate(rig, kind));
    durations[kind] = Clock::Real().Now() - begin;
  }
  return durations;
}

// Of many runs: the slowest of each kind, or the fastest.
absl::StatusOr<Durations> TimeManyOperations(Rig& rig, bool is_slowest) {
  ASSIGN_OR_RETURN(Durations result, TimeOperations(rig));
  for (int run = 1; run < 20; ++run) {
    ASSIGN_OR_RETURN(const Durations durations, TimeOperations(rig));
    for (size_t kind = 0; kind < kKindsOfOperations; ++kind) {
      if ((durations[kind] > result[kind]) == is_slowest) result[kind] = durations[kind];
    }
  }
  return result;
}

// While rank 1 is stopped, rank 0 does everything towards it. A machine that others share makes
// single operations slow at any time: so the fastest of many while rank 1 stands still are held
// against the slowest of many before that. Whatever waited for rank 1 would make all of them slow.
TEST(WindowProcessTest, NothingWaitsForARankThatIsStopped) {
  Phases::Begin();
  Processes processes(3, With(100'000, [](Rig& rig, int rank) -> std::string {
                        if (rank != 0) {
                          Processes::Mark(rank);
                          Phases::Await(2);
                          return "";
                        }
                        const auto before = TimeManyOperations(rig, /*is_slowest=*/true);
                        if (!before.ok()) return TextOf(before.status());
                        Processes::Mark(rank);
                        Phases::Await(1);
                        const auto meanwhile = TimeManyOperations(rig, /*is_slowest=*/false);
                        if (!meanwhile.ok()) return TextOf(meanwhile.status());
                        Processes::Mark(rank);
                        Phases::Await(2);
                        std::string slow;
                        for (size_t kind = 0; kind < kKindsOfOperations; ++kind) {
                          if ((*meanwhile)[kind] <= 2 * (*before)[kind]) continue;
                          absl::StrAppend(&slow, "kind ", kind, " took ",
                                          absl::FormatDuration((*meanwhile)[kind]), " instead of ",
                                          absl::FormatDuration((*before)[kind]), "; ");
                        }
                        return slow;
                      }));
  for (int rank = 0; rank < 3; ++rank) processes.AwaitMark(rank, 1);
  ASSERT_EQ(kill(processes.pid(1), SIGSTOP), 0);
  Phases::Next();
  processes.AwaitMark(0, 2);  // well within its minute: nothing waited
  ASSERT_EQ(kill(processes.pid(1), SIGCONT), 0);
  Phases::Next();
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(WindowProcessTest, AMutexComesBackWhenItsHolderIsKilled) {
  Phases::Begin();
  Processes processes(2, With(10, [](Rig& rig, int rank) -> std::string {
                        if (rank == 1) {
                          const absl::Status locked =
                              rig.window->Lock(Rank(0), /*of_own=*/false, Soon());
                          if (!locked.ok()) return TextOf(locked);
                          Processes::Mark(rank);
                          Phases::Await(99);
                        }
                        Phases::Await(1);
                        // Held by the living: an error at the deadline, which names the holder.
                        const absl::Status late = rig.window->Lock(Rank(1), /*of_own=*/true,
                                                                   Soon(absl::Milliseconds(100)));
                        if (late.code() != absl::StatusCode::kDeadlineExceeded)
                          return "got the mutex of another";
                        if (TextOf(late).find("rank 1 holds") == std::string::npos)
                          return TextOf(late);
                        Processes::Mark(rank);
                        return TextOf(rig.window->Lock(Rank(1), /*of_own=*/true, Soon()));
                      }));
  processes.AwaitMark(1, 1);
  Phases::Next();
  processes.AwaitMark(0, 1);
  ASSERT_EQ(kill(processes.pid(1), SIGKILL), 0);
  EXPECT_THAT(processes.Join(0), IsEmpty());
  EXPECT_THAT(processes.Join(1), HasSubstr("signal 9"));
}

// Rank 1 dies with half a value written; rank 2 lives.
TEST(WindowProcessTest, AWriterKilledInAPutLeavesItsLastValueAndIsNamed) {
  constexpr uint64_t kCount = 10'000;
  Phases::Begin();
  Processes processes(
      3, With(kCount, [](Rig& rig, int rank) -> std::string {
        Window& window = *rig.window;
        if (rank == 1) {
          const absl::Status put = window.Put(rig.Whole(), rig.All(1), 1, {});
          if (!put.ok()) return TextOf(put);
          std::vector<double> other(kCount, 77);
          EdgeWrite::What what;
          what.source = reinterpret_cast<const std::byte*>(other.data());
          what.count = kCount;
          what.dtype = DType::kFloat64;
          what.step_count = kCount / 2;
          EdgeWrite half(window.edge_to(Rank(0)), what);
          for (int step = 0; step < 2; ++step) (void)half.Advance();
          Processes::Mark(rank);
          Phases::Await(99);
        }
        Processes::Mark(rank);
        Phases::Await(1);
        if (rank == 2) {
          Phases::Await(2);
          return rig.window->versions()[0].second == 5 ? "" : "rank 0's puts did not come";
        }
        // The processes' end and its notice may be apart: the edge fails in the end, and by name.
        absl::Status put;
        int puts = 0;
        while (put.ok() && puts < 5) {
          put = window.Put(rig.Whole(), rig.All(1), 1, {});
          ++puts;
        }
        while (puts < 5) {
          (void)window.Put(rig.Whole(), rig.All(1), 1, {});
          ++puts;
        }
        if (!absl::IsUnavailable(put)) return "a put to the dead went well";
        if (TextOf(put).find("edge with rank 1") == std::string::npos) return TextOf(put);
        if (TextOf(put).find("rank 2") != std::string::npos) return TextOf(put);
        if (!absl::IsUnavailable(window.Get(rig.All(1), {}))) return "got from the dead";
        const std::vector<Neighbor> of_the_dead = {{Rank(1), 1}};
        const absl::Status updated =
            window.UpdateFromInlets({.own_weight = 0, .sources = of_the_dead}, {});
        if (!updated.ok()) return TextOf(updated);
        for (const double element : rig.tensor) {
          if (element != 2)
            return absl::StrCat("read ", element, " of the dead writer's last value");
        }
        Phases::Next();
        return "";
      }));
  for (int rank = 0; rank < 3; ++rank) processes.AwaitMark(rank, 1);
  ASSERT_EQ(kill(processes.pid(1), SIGKILL), 0);
  EXPECT_THAT(processes.Join(1), HasSubstr("signal 9"));
  Phases::Next();
  EXPECT_THAT(processes.Join(0), IsEmpty());
  EXPECT_THAT(processes.Join(2), IsEmpty());
}

// Rank 1 dies with one inlet taken and half of it added: nobody waits for what it holds.
TEST(WindowProcessTest, AnOwnerKilledInACollectIsNamedAndHoldsUpNobody) {
  constexpr uint64_t kCount = 10'000;
  Phases::Begin();
  Processes processes(
      3, With(kCount, [](Rig& rig, int rank) -> std::string {
        Window& window = *rig.window;
        const absl::Status put = window.Put(rig.Whole(), rig.All(1), 1, {});
        if (!put.ok()) return TextOf(put);
        Processes::Mark(rank);
        Phases::Await(1);  // everybody has put
        if (rank == 1) {
          for (const Rank source : window.options().sources) {
            const absl::Status locked = window.Lock(source, /*of_own=*/true, Soon());
            if (!locked.ok()) return TextOf(locked);
          }
          OwnerUpdate::What what;
          what.tensor = what.target = reinterpret_cast<std::byte*>(rig.tensor.data());
          what.count = kCount;
          what.dtype = DType::kFloat64;
          what.sources = {{window.edge_from(0), 1}, {window.edge_from(1), 1}};
          what.resets = true;
          what.step_count = kCount / 2;
          OwnerUpdate half(std::move(what));
          for (int step = 0; step < 3; ++step) {
            if (half.Advance()) return "the collect was through too soon";
          }
          Processes::Mark(rank);
          Phases::Await(99);
        }
        Phases::Await(2);  // rank 1 is dead
        const WindowAccess access{.with_mutex = true, .deadline = Soon()};
        absl::Status accumulated;
        for (int i = 0; i < 5; ++i) {
          // The process's end and its notice may be apart.
          accumulated.Update(window.Accumulate(rig.Whole(), rig.All(1), 1, access));
        }
        if (!absl::IsUnavailable(accumulated)) return "accumulated into the inlet of the dead";
        if (TextOf(accumulated).find("edge with rank 1") == std::string::npos)
          return TextOf(accumulated);
        if (TextOf(accumulated).find("edge with rank 2") != std::string::npos)
          return TextOf(accumulated);
        Processes::Mark(rank);
        Phases::Await(3);  // the other survivor has accumulated five times
        const std::vector<Neighbor> all = rig.All(1);
        const absl::Status collected =
            window.UpdateFromInlets({.own_weight = 0, .sources = all, .resets = true}, access);
        if (!collected.ok()) return TextOf(collected);
        const double other = 2 - rank + 1;  // what its tensor holds
        const double expected = 2 /* of rank 1's put */ + other + 5 * other;
        for (const double element : rig.tensor) {
          if (element != expected) return absl::StrCat("collected ", element, ", not ", expected);
        }
        return "";
      }));
  for (int rank = 0; rank < 3; ++rank) processes.AwaitMark(rank, 1);
  Phases::Next();
  processes.AwaitMark(1, 2);
  ASSERT_EQ(kill(processes.pid(1), SIGKILL), 0);
  EXPECT_THAT(processes.Join(1), HasSubstr("signal 9"));
  Phases::Next();
  for (const int rank : {0, 2}) processes.AwaitMark(rank, 2);
  Phases::Next();
  EXPECT_THAT(processes.Join(0), IsEmpty());
  EXPECT_THAT(processes.Join(2), IsEmpty());
}

// Where rank 0 forbids it, its tensor moves to where it may be read.
TEST(WindowProcessTest, ATensorThatMayNotBeReadIsInTheWindowsMemory) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    const int rank = options.rank.value();
    if (rank == 0) setenv("PELTON_PTRACE", "0", 1);
    auto rig = Rig::Make(options, 5000);
    if (!rig.ok()) return TextOf(rig.status());
    Window& window = *(*rig)->window;
    if ((window.home() != nullptr) != (rank == 0)) return "moved, or did not";
    if (rank == 0) {
      auto* const moved = static_cast<double*>(window.options().tensor.data);
      if (moved[4999] != 1) return "its bytes did not move";
    }
    absl::Status first = absl::OkStatus();
    if (rank == 1) {  // finds the tensor there however early it comes
      first = window.Get((*rig)->All(1), {});
      first.Update(window.UpdateFromInlets({.own_weight = 0, .sources = (*rig)->All(1)}, {}));
      auto* const got = static_cast<double*>(window.options().tensor.data);
      if (first.ok() && got[4999] != 1) return absl::StrCat("it got ", got[4999]);
      for (int i = 0; i < 5000; ++i) got[i] = 2;
    }
    first = AgreeOnStatus(*(*rig)->end.communicator, first, Soon());
    if (!first.ok()) return TextOf(first);
    if (rank == 0) {
      for (int i = 0; i < 5000; ++i) static_cast<double*>(window.options().tensor.data)[i] = 50;
    }
    const absl::Status met = AgreeOnStatus(*(*rig)->end.communicator, absl::OkStatus(), Soon());
    if (!met.ok()) return TextOf(met);
    const std::vector<Neighbor> all = (*rig)->All(1);
    absl::Status status = window.Get(all, {});
    status.Update(AgreeOnStatus(*(*rig)->end.communicator, status, Soon()));
    status.Update(window.UpdateFromInlets({.own_weight = 0, .sources = all}, {}));
    const auto* const values = static_cast<const double*>(window.options().tensor.data);
    if (status.ok() && values[4999] != (rank == 0 ? 2 : 50)) return absl::StrCat(values[4999]);
    return TextOf(status);
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// Windows keep no descriptors, so that a thousand of them fit where a process may have few.
TEST(WindowProcessTest, AThousandWindowsOfEightRanksNeedNoDescriptors) {
  Processes processes(8, [](const TransportOptions& options) -> std::string {
    const rlimit few = {1024, 1024};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) return "setrlimit";
    auto end = shm::MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return TextOf(end.status());
    auto met = PeerProcesses::Meet(*end->communicator, Soon());
    if (!met.ok()) return TextOf(met.status());
    const size_t before = OpenDescriptors();
    std::vector<double> tensor(4, 1);
    std::vector<std::unique_ptr<Window>> windows;
    for (int i = 0; i < 1000; ++i) {
      WindowOptions window;
      window.name = absl::StrCat("w", i);
      window.tensor = {tensor.data(), 4, DType::kFloat64};
      window.shape = {4};
      window.sources = {Rank((options.rank.value() + 7) % 8)};
      window.destinations = {Rank((options.rank.value() + 1) % 8)};
      auto made = CreateWindow(*end->communicator, *met, window, Soon());
      if (!made.ok()) return TextOf(made.status());
      windows.push_back(*std::move(made));
    }
    const size_t after = OpenDescriptors();
    if (after != before) return absl::StrCat(after, " descriptors after ", before);
    return TextOf(AgreeOnStatus(*end->communicator, absl::OkStatus(), Soon()));
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

}  // namespace
}  // namespace pelton
