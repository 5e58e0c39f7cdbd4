// Conformance of windows: made over any communicator, between ranks that share memory, and over
// links of two ranks each between those that do not.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/conformance/test_world.h"
#include "comm/window/create_window.h"
#include "comm/window/peer_link.h"
#include "comm/window/peer_processes.h"
#include "comm/window/window.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::conformance {
namespace {

using Values = std::vector<double>;

// Where the ranks say that they are, because all of them are here.
enum class Hosts : uint8_t { kOne, kPairs, kEachItsOwn };
constexpr Hosts kAllHosts[] = {Hosts::kOne, Hosts::kPairs, Hosts::kEachItsOwn};

std::string LabelOf(Hosts hosts, Rank rank) {
  if (hosts == Hosts::kOne) return "";
  return absl::StrCat(hosts == Hosts::kPairs ? rank.value() / 2 : rank.value());
}

// Every two ranks have a number that no other two have.
CommunicatorId IdOf(Rank lower, Rank higher, WorldSize world_size) {
  return CommunicatorId(
      static_cast<uint32_t>(100 + lower.value() * world_size.value() + higher.value()));
}

std::shared_ptr<PeerLinks> LinksOver(Transport& transport, Rank rank, WorldSize world_size) {
  return std::make_shared<PeerLinks>(
      [&transport, rank, world_size](Rank peer, uint32_t, absl::Time deadline) {
        const Rank lower = std::min(rank, peer);
        const Rank higher = std::max(rank, peer);
        return transport.Open(IdOf(lower, higher, world_size),
                              Group{{lower, higher}, Generation(1)}, deadline);
      });
}

// One rank's window over all others, both ways. Threads: the rank's. Owns: all but the
// communicator.
struct Rig {
  Communicator* communicator = nullptr;
  std::shared_ptr<PeerLinks> links;
  Values tensor;
  std::unique_ptr<Window> window;

  Tensor Whole() { return {tensor.data(), tensor.size(), DType::kFloat64}; }
  std::vector<Neighbor> All(double weight) const {
    std::vector<Neighbor> all;
    for (const Rank rank : window->options().sources) all.push_back({rank, weight});
    return all;
  }
  void AwaitAll() const {
    const absl::StatusOr<Completion> barrier = Barrier(*communicator);
    ASSERT_TRUE(barrier.ok()) << barrier.status();
    EXPECT_EQ(Await(*communicator, *barrier, FarDeadline()), absl::OkStatus());
  }
  // Collects everything into the tensor.
  absl::Status Collect(const WindowAccess& access) const {
    const std::vector<Neighbor> all = All(1);
    return window->UpdateFromInlets({.sources = all, .resets = true}, access);
  }
};

struct RigOptions {
  Hosts hosts = Hosts::kEachItsOwn;
  uint64_t count = 1000;
};

absl::StatusOr<Rig> MakeRig(TestWorld& world, Transport& transport, Rank rank,
                            const RigOptions& options) {
  Rig rig;
  rig.communicator = &world.communicator(rank);
  ASSIGN_OR_RETURN(auto processes, PeerProcesses::Meet(*rig.communicator, FarDeadline(),
                                                       LabelOf(options.hosts, rank)));
  rig.links = LinksOver(transport, rank, world.world_size());
  rig.tensor.assign(options.count, rank.value() + 1);
  WindowOptions window;
  window.name = "w";
  window.tensor = rig.Whole();
  window.shape = {static_cast<int64_t>(options.count)};
  for (int32_t peer = 0; peer < world.world_size().value(); ++peer) {
    if (Rank(peer) != rank) window.sources.emplace_back(peer);
  }
  window.destinations = window.sources;
  window.zero_init = true;
  ASSIGN_OR_RETURN(rig.window, CreateWindow(*rig.communicator, processes, std::move(window),
                                            FarDeadline(), rig.links));
  return rig;
}

using Body = void (*)(Rig&, Rank);

void RunRigs(TransportFixtureFactory factory, int32_t size, const RigOptions& options, Body body) {
  TestWorld world(factory, size);
  world.RunTransports([&](Transport& transport, Rank rank) {
    absl::StatusOr<Rig> rig = MakeRig(world, transport, rank, options);
    ASSERT_TRUE(rig.ok()) << rig.status();
    body(*rig, rank);
    rig->AwaitAll();  // before anybody's memory goes
  });
  world.ExpectUsable();
}

// Links find a message by its tag.
bool HasLinks(TransportFixtureFactory factory) { return factory()->promises().has_tags; }

// Everybody gives to everybody; every other time the ranks collect at once, so that all
// interleavings happen.
TEST_P(TransportConformanceTest, WindowsMadeOverItKeepTheMass) {
  for (const Hosts hosts : kAllHosts) {
    if (hosts != Hosts::kOne && !HasLinks(GetParam())) continue;
    for (const int32_t size : {1, 2, 4}) {
      RunRigs(GetParam(), size, {.hosts = hosts}, [](Rig& rig, Rank rank) {
        constexpr int kRounds = 20;
        Values ones(rig.tensor.size(), 1);
        for (int round = 0; round < kRounds; ++round) {
          const WindowAccess access{
              .with_p = true, .with_mutex = round % 3 == 0, .deadline = FarDeadline()};
          ASSERT_EQ(rig.window->Accumulate({ones.data(), ones.size(), DType::kFloat64}, rig.All(2),
                                           1, access),
                    absl::OkStatus());
          if (round % 2 == 0) continue;
          ASSERT_EQ(rig.Collect(access), absl::OkStatus());
        }
        rig.AwaitAll();
        ASSERT_EQ(rig.Collect({}), absl::OkStatus());
        const auto others = static_cast<double>(rig.window->options().sources.size());
        const double expected = rank.value() + 1 + 2 * kRounds * others;
        for (const double element : rig.tensor) ASSERT_EQ(element, expected);
      });
    }
  }
}

// A put, with its weight, p and version; then a get. Some values go in one message, some do not.
TEST_P(TransportConformanceTest, WindowsPutAndGetWholeValues) {
  for (const Hosts hosts : kAllHosts) {
    if (hosts != Hosts::kOne && !HasLinks(GetParam())) continue;
    for (const uint64_t count : {0, 3, 100'000}) {
      RunRigs(GetParam(), 3, {.hosts = hosts, .count = count}, [](Rig& rig, Rank rank) {
        const WindowAccess access{.with_p = true, .deadline = FarDeadline()};
        Values source(rig.tensor.size(), 10 * (rank.value() + 1));
        ASSERT_EQ(rig.window->Put({source.data(), source.size(), DType::kFloat64}, rig.All(0.5),
                                  0.25, access),
                  absl::OkStatus());
        for (const double element : source) ASSERT_EQ(element, 2.5 * (rank.value() + 1));
        EXPECT_EQ(rig.window->p(), 0.25);
        rig.AwaitAll();
        for (const auto& [from, version] : rig.window->versions()) EXPECT_EQ(version, 1) << from;
        const std::vector<Neighbor> all = rig.All(1);
        ASSERT_EQ(rig.window->UpdateFromInlets({.own_weight = 0, .sources = all}, access),
                  absl::OkStatus());
        EXPECT_EQ(rig.window->p(), 1);
        for (const double element : rig.tensor) ASSERT_EQ(element, 5 * (6 - rank.value() - 1));
        rig.AwaitAll();
        ASSERT_EQ(rig.window->Get(rig.All(2), access), absl::OkStatus());
        rig.AwaitAll();
        ASSERT_EQ(rig.window->UpdateFromInlets({.own_weight = 0, .sources = all}, {}),
                  absl::OkStatus());
        // The others' were 25, 20 and 15.
        const double got = 2 * (60 - 5 * (6 - rank.value() - 1));
        for (const double element : rig.tensor) ASSERT_EQ(element, got);
      });
    }
  }
}

bool Says(const absl::Status& status, const std::string& what) {
  return status.message().find(what) != absl::string_view::npos;
}

// Rank 0 takes the mutex of its edge to rank 1, and both ranks find it taken.
TEST_P(TransportConformanceTest, WindowsMutexesExcludeBothEnds) {
  for (const Hosts hosts : kAllHosts) {
    if (hosts != Hosts::kOne && !HasLinks(GetParam())) continue;
    RunRigs(GetParam(), 2, {.hosts = hosts, .count = 4}, [](Rig& rig, Rank rank) {
      Window& window = *rig.window;
      const Rank other(1 - rank.value());
      const bool is_owner = rank == Rank(1);
      for (const bool owner_holds : {false, true}) {
        if (is_owner == owner_holds) {
          ASSERT_EQ(window.Lock(other, is_owner, FarDeadline()), absl::OkStatus());
        }
        rig.AwaitAll();
        if (is_owner != owner_holds) {
          EXPECT_FALSE(*window.TryLock(other, is_owner));
          const absl::Status late =
              window.Lock(other, is_owner, Clock::Real().Now() + absl::Milliseconds(50));
          EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
          EXPECT_TRUE(Says(late, absl::StrCat("rank ", other.value(), " holds"))) << late;
        }
        rig.AwaitAll();
        if (is_owner == owner_holds) {
          ASSERT_EQ(window.Unlock(other, is_owner), absl::OkStatus());
        } else {
          // Waits for the one above.
          ASSERT_EQ(window.Lock(other, is_owner, FarDeadline()), absl::OkStatus());
          ASSERT_EQ(window.Unlock(other, is_owner), absl::OkStatus());
        }
        rig.AwaitAll();
      }
    });
  }
}

// Rank 2 goes, with a mutex of rank 0's. Its edges fail by name, the others do not.
TEST_P(TransportConformanceTest, WindowsOfARankThatHasLeftFailByEdge) {
  if (!HasLinks(GetParam())) return;
  RunRigs(GetParam(), 3, {.hosts = Hosts::kEachItsOwn}, [](Rig& rig, Rank rank) {
    Window& window = *rig.window;
    if (rank == Rank(2)) {
      ASSERT_EQ(window.Lock(Rank(0), /*of_own=*/false, FarDeadline()), absl::OkStatus());
    }
    rig.AwaitAll();
    if (rank == Rank(2)) rig.links->Close();
    if (rank == Rank(0)) {
      ASSERT_EQ(window.Lock(Rank(2), /*of_own=*/true, FarDeadline()), absl::OkStatus());
      ASSERT_EQ(window.Unlock(Rank(2), /*of_own=*/true), absl::OkStatus());
    }
    rig.AwaitAll();
    const WindowAccess access{.with_p = true, .deadline = FarDeadline()};
    const absl::Status put = window.Put(rig.Whole(), rig.All(1), 1, access);
    EXPECT_FALSE(put.ok());
    if (rank != Rank(2)) {
      EXPECT_EQ(put.code(), absl::StatusCode::kUnavailable) << put;
      EXPECT_TRUE(Says(put, "edge with rank 2: rank 2")) << put;
      EXPECT_FALSE(Says(put, absl::StrCat("edge with rank ", 1 - rank.value()))) << put;
      EXPECT_EQ(window.Get(rig.All(1), access).code(), absl::StatusCode::kUnavailable);
    }
    rig.AwaitAll();
    if (rank == Rank(2)) return;
    // The put and the get of the other one.
    EXPECT_EQ(window.versions()[0].second, 2);
    EXPECT_EQ(window.versions()[1].second, 0);
  });
}

TEST_P(TransportConformanceTest, WindowsThatDifferAreAnErrorOnEveryRank) {
  TestWorld world(GetParam(), 3);
  world.RunTransports([&](Transport& transport, Rank rank) {
    const uint64_t count = rank == Rank(2) ? 5 : 4;
    const absl::Status made =
        MakeRig(world, transport, rank, {.hosts = Hosts::kPairs, .count = count}).status();
    EXPECT_EQ(made.code(), absl::StatusCode::kInvalidArgument) << made;
    EXPECT_EQ(made.message(),
              "window 'w': the tensor is [4] of float64 on rank 0 and [5] of float64 on rank 2");
  });
  world.ExpectUsable();
}

TEST_P(TransportConformanceTest, WindowsBetweenHostsNeedLinks) {
  TestWorld world(GetParam(), 2);
  world.Run([&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    auto processes =
        PeerProcesses::Meet(communicator, FarDeadline(), LabelOf(Hosts::kEachItsOwn, rank));
    ASSERT_TRUE(processes.ok()) << processes.status();
    Values tensor(4);
    WindowOptions options;
    options.name = "w";
    options.tensor = {tensor.data(), tensor.size(), DType::kFloat64};
    options.shape = {4};
    options.sources = options.destinations = {Rank(1 - rank.value())};
    const absl::Status made =
        CreateWindow(communicator, *processes, std::move(options), FarDeadline()).status();
    EXPECT_EQ(made.code(), absl::StatusCode::kUnimplemented) << made;
    EXPECT_TRUE(Says(made, "window 'w': rank 1 is on another host")) << made;
  });
  world.ExpectUsable();
}

}  // namespace
}  // namespace pelton::conformance
