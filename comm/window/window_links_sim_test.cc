// Windows between simulated hosts, over links with random latencies, in every order that a seed
// gives. A failing seed is printed: PELTON_SEED=<seed> repeats it; PELTON_SEEDS=<count> runs more.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/transport/sim/sim_fabric.h"
#include "comm/window/create_window.h"
#include "comm/window/peer_link.h"
#include "comm/window/window.h"
#include "core/actor/context.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/base/check.h"
#include "core/base/moving_deadline.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr uint64_t kSeeds = 1000;
constexpr uint64_t kCount = 5;  // elements; two a step
constexpr int kOperations = 8;  // of each rank

using Values = std::vector<double>;

Tensor Whole(Values& values) { return {values.data(), values.size(), DType::kFloat64}; }

LinkModel Wire(uint64_t seed) {
  return {absl::Microseconds(1 + seed % 7), 0, absl::Microseconds(seed % 20)};
}

// Ranks on some hosts, each with a window over all others. Threads: the test's. Owns: all of it.
class World {
 public:
  World(uint64_t seed, int32_t size)
      : executor(seed),
        fabric(WorldSize(size), {Wire(seed), seed, &executor.clock()}),
        size_(size) {
    executor.AddEventSource(&fabric);
    std::mt19937_64 random(seed);
    HostsHere hosts;
    std::vector<WindowOptions> options(static_cast<size_t>(size));
    for (int32_t rank = 0; rank < size; ++rank) {
      // At least two hosts.
      hosts.host_of.push_back(rank < 2 ? rank : static_cast<int32_t>(random() % 3));
      links.push_back(MakeLinks(rank));
      tensors.push_back(std::make_unique<Values>(kCount));
      for (double& value : *tensors.back()) value = static_cast<double>(random() % 1000);
      WindowOptions& mine = options[static_cast<size_t>(rank)];
      mine.name = "w";
      mine.tensor = Whole(*tensors.back());
      mine.shape = {static_cast<int64_t>(kCount)};
      mine.zero_init = true;
      for (int32_t peer = 0; peer < size; ++peer) {
        if (peer != rank) mine.sources.emplace_back(peer);
      }
      mine.destinations = mine.sources;
    }
    hosts.links = links;
    auto made = CreateWindowsHere(std::move(options), &hosts);
    PELTON_CHECK(made.ok()) << made.status();
    windows = *std::move(made);
    host_of = hosts.host_of;
  }
  ~World() {
    windows.clear();
    links.clear();
    pairs_.clear();
    executor.RemoveEventSource(&fabric);
  }
  Window& window(int32_t rank) { return *windows[static_cast<size_t>(rank)]; }
  Values& tensor(int32_t rank) { return *tensors[static_cast<size_t>(rank)]; }
  bool AreFar(int32_t one, int32_t other) const {
    return host_of[static_cast<size_t>(one)] != host_of[static_cast<size_t>(other)];
  }

  SimExecutor executor;
  SimFabric fabric;
  std::vector<std::shared_ptr<PeerLinks>> links;
  std::vector<int32_t> host_of;
  std::vector<std::unique_ptr<Values>> tensors;
  std::vector<std::unique_ptr<Window>> windows;

 private:
  using Pair = std::pair<int32_t, int32_t>;

  std::shared_ptr<PeerLinks> MakeLinks(int32_t rank) {
    return std::make_shared<PeerLinks>(
        [this, rank](Rank peer, uint32_t,
                     absl::Time) -> absl::StatusOr<std::unique_ptr<Communicator>> {
          const Pair pair(std::min(rank, peer.value()), std::max(rank, peer.value()));
          auto& opened = pairs_[pair];
          if (opened.empty()) {
            const auto id = static_cast<uint32_t>(1 + pair.first * size_ + pair.second);
            auto all = fabric.OpenAll(CommunicatorId(id),
                                      {{Rank(pair.first), Rank(pair.second)}, Generation(1)});
            if (!all.ok()) return all.status();
            opened = *std::move(all);
          }
          return std::move(opened[rank == pair.first ? 0 : 1]);
        },
        &executor);
  }

  const int32_t size_;
  std::map<Pair, std::vector<std::unique_ptr<Communicator>>> pairs_;
};

// Tensors and inlets, element by element, and the inlets' p.
struct Mass {
  Values values = Values(kCount, 0);
  double p = 0;
};

Mass MassOf(World& world) {
  Mass mass;
  const auto add = [&mass](const double* values) {
    for (size_t i = 0; i < kCount; ++i) mass.values[i] += values[i];
  };
  for (const auto& tensor : world.tensors) add(tensor->data());
  for (const auto& window : world.windows) {
    for (size_t i = 0; i < window->options().sources.size(); ++i) {
      const EdgeView edge = window->edge_from(i);
      const Inlet::View seen = edge.inlet->Take({});
      mass.p += seen.p;
      if (!seen.is_zero) add(reinterpret_cast<const double*>(edge.buffer(seen.buffer)));
      edge.inlet->Release();
    }
  }
  return mass;
}

// A rank that accumulates and collects, one step a turn.
class Player final : public Actor {
 public:
  struct Tick {};

  Player(World* world, int32_t rank, uint64_t seed, int* still_playing, double* p)
      : world_(*world), rank_(rank), random_(seed), still_playing_(*still_playing), p_(*p) {}

  absl::Status OnStart() override {
    Again();
    return absl::OkStatus();
  }
  void Handle(Tick) {
    if (!steps_ && !Choose()) return;
    if (steps_()) steps_ = nullptr;
    Again();
  }

 private:
  using Steps = std::function<bool()>;  // true: it is over

  void Again() {
    (void)context().SendAfter(*this, absl::Microseconds(static_cast<int>(random_() % 9)), Tick{});
  }
  Window& window() { return world_.window(rank_); }

  bool Choose() {
    if (left_-- == 0) {
      --still_playing_;
      return false;
    }
    steps_ = random_() % 2 == 0 ? Spread() : Collect();
    return true;
  }

  // An amount, of whole numbers, goes from this rank to each other one.
  Steps Spread() {
    struct State {
      size_t next = 0;
      Values amount = Values(kCount);
      double p = 0;
      Future<bool> far;
      std::unique_ptr<EdgeWrite> near;
    };
    auto state = std::make_shared<State>();
    for (double& value : state->amount) value = static_cast<double>(random_() % 100);
    state->p = static_cast<double>(random_() % 100);
    return [this, state] {
      const std::vector<Rank>& to = window().options().destinations;
      if (state->next == to.size()) {
        const auto all = static_cast<double>(2 * to.size());
        for (size_t i = 0; i < kCount; ++i) world_.tensor(rank_)[i] -= all * state->amount[i];
        p_ -= all * state->p;
        return true;
      }
      EdgeWrite::What what;
      what.source = reinterpret_cast<const std::byte*>(state->amount.data());
      what.count = kCount;
      what.dtype = DType::kFloat64;
      what.weight = 2;
      what.adds = true;
      what.p = 2 * state->p;
      what.step_count = 2;
      RemoteEnd* const far = window().remote_end(to[state->next]);
      if (far != nullptr) {
        if (!state->far.valid()) state->far = far->StartWrite(what);
        if (!state->far.ready()) return false;
        EXPECT_TRUE(std::move(state->far).Take().ok());
      } else {
        if (state->near == nullptr) {
          state->near = std::make_unique<EdgeWrite>(window().edge_to(to[state->next]), what);
        }
        if (!*state->near->Advance()) return false;
        state->near = nullptr;
      }
      ++state->next;
      return false;
    };
  }

  Steps Collect() {
    OwnerUpdate::What what;
    what.tensor = reinterpret_cast<const std::byte*>(world_.tensor(rank_).data());
    what.target = reinterpret_cast<std::byte*>(world_.tensor(rank_).data());
    what.count = kCount;
    what.dtype = DType::kFloat64;
    for (size_t i = 0; i < window().options().sources.size(); ++i) {
      what.sources.push_back({window().edge_from(i), 1});
    }
    what.resets = true;
    what.p = p_;
    what.step_count = 2;
    auto update = std::make_shared<OwnerUpdate>(std::move(what));
    return [this, update] {
      if (!update->Advance()) return false;
      p_ = *update->p();
      return true;
    };
  }

  World& world_;
  const int32_t rank_;
  std::mt19937_64 random_;
  int& still_playing_;
  double& p_;
  int left_ = kOperations;
  Steps steps_;
};

TEST(WindowLinksSimTest, AccumulateAndCollectBetweenHostsKeepTheMass) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    const auto size = static_cast<int32_t>(2 + seed % 3);
    World world(seed, size);
    const Mass before = MassOf(world);
    std::vector<double> p(static_cast<size_t>(size), 1);
    int still_playing = size;
    for (int32_t rank = 0; rank < size; ++rank) {
      (void)Spawn<Player>(world.executor, {.name = "player"}, &world, rank,
                          seed * 31 + static_cast<uint64_t>(rank), &still_playing,
                          &p[static_cast<size_t>(rank)]);
    }
    EXPECT_TRUE(world.executor.RunUntil([&] { return still_playing == 0; },
                                        world.executor.Now() + absl::Hours(1)))
        << "somebody waits for ever";
    Mass after = MassOf(world);
    for (const double mine : p) after.p += mine;
    EXPECT_EQ(after.values, before.values) << "MASS-1";
    EXPECT_EQ(after.p, size) << "MASS-1";
  });
}

// What an inlet holds, by what was called. Threads: a value.
struct Held {
  double value = 0;  // of all elements
  double p = 0;
  uint32_t version = 0;
};

// Calls of random ranks, one after the other, against what each has to do.
void CallAll(uint64_t seed) {
  const auto size = static_cast<int32_t>(2 + seed % 3);
  World world(seed, size);
  std::mt19937_64 random(seed);
  std::map<std::pair<int32_t, int32_t>, Held> inlets;  // by source and owner
  for (int32_t rank = 0; rank < size; ++rank) world.tensor(rank).assign(kCount, rank + 1);
  for (int call = 0; call < 30; ++call) {
    const auto rank = static_cast<int32_t>(random() % static_cast<uint64_t>(size));
    const auto peer = static_cast<int32_t>((rank + 1 + random() % static_cast<uint64_t>(size - 1)) %
                                           static_cast<uint64_t>(size));
    const Neighbor edge{Rank(peer), static_cast<double>(random() % 8)};
    Window& window = world.window(rank);
    const WindowAccess access{.with_p = random() % 2 == 0, .with_mutex = random() % 2 == 0};
    Values source(kCount, static_cast<double>(random() % 50));
    if (random() % 3 == 0) {
      Held& held = inlets[{rank, peer}];
      ASSERT_EQ(window.Put(Whole(source), {edge}, 1, access), absl::OkStatus());
      held.value = edge.weight * source[0];
      if (access.with_p) held.p = edge.weight * window.p();
      ++held.version;
    } else if (random() % 2 == 0) {
      Held& held = inlets[{rank, peer}];
      ASSERT_EQ(window.Accumulate(Whole(source), {edge}, 1, access), absl::OkStatus());
      held.value += edge.weight * source[0];
      if (access.with_p) held.p += edge.weight * window.p();
    } else {
      Held& held = inlets[{peer, rank}];
      ASSERT_EQ(window.Get({edge}, access), absl::OkStatus());
      held.value = edge.weight * world.tensor(peer)[0];
      ++held.version;
    }
  }
  for (const auto& [edge, held] : inlets) {
    Window& owner = world.window(edge.second);
    const auto index = static_cast<size_t>(edge.first - (edge.first > edge.second ? 1 : 0));
    const EdgeView view = owner.edge_from(index);
    EXPECT_EQ(view.inlet->version(), held.version);
    const Inlet::View seen = view.inlet->Take({});
    EXPECT_EQ(seen.p, held.p);
    const auto* const values = reinterpret_cast<const double*>(view.buffer(seen.buffer));
    for (size_t i = 0; i < kCount && !seen.is_zero; ++i) EXPECT_EQ(values[i], held.value);
    view.inlet->Release();
  }
}

TEST(WindowLinksSimTest, EachCallDoesWhatItDoesInsideAHost) { ForEachSeed(kSeeds, CallAll); }

// A rank that dies, at any time and with a mutex. Its edges to other hosts fail by name, those of
// the others do not, and the mutex is free again.
void LoseARank(uint64_t seed) {
  World world(seed, 3);
  const int32_t dead = 0;
  std::mt19937_64 random(seed);
  const int32_t far = world.AreFar(0, 1) ? 1 : 2;
  const absl::Time deadline = world.executor.Now() + absl::Seconds(10);
  ASSERT_EQ(world.window(dead).Lock(Rank(far), /*of_own=*/false, deadline), absl::OkStatus());
  EXPECT_FALSE(*world.window(far).TryLock(Rank(dead), /*of_own=*/true));
  Values source(kCount, 1);
  Future<bool> under_way;
  if (random() % 2 == 0) {
    EdgeWrite::What what;
    what.source = reinterpret_cast<const std::byte*>(source.data());
    what.count = kCount;
    what.dtype = DType::kFloat64;
    under_way = world.window(dead).remote_end(Rank(far))->StartWrite(what);
  }
  world.executor.RunFor(absl::Microseconds(static_cast<int>(random() % 60)));
  world.fabric.KillRank(Rank(dead));
  world.executor.RunFor(absl::Seconds(1));
  EXPECT_TRUE(*world.window(far).TryLock(Rank(dead), /*of_own=*/true));
  EXPECT_EQ(world.window(far).Unlock(Rank(dead), /*of_own=*/true), absl::OkStatus());
  for (const int32_t rank : {1, 2}) {
    const Neighbor all[] = {{Rank(dead), 1}, {Rank(3 - rank), 1}};
    const absl::Status put =
        world.window(rank).Put(Whole(source), all, 1, {.with_p = true, .deadline = deadline});
    if (!world.AreFar(rank, dead)) continue;  // memory needs nobody's life
    EXPECT_EQ(put.code(), absl::StatusCode::kUnavailable) << put;
    EXPECT_EQ(put.message().find("window 'w': edge with rank 0: rank 0 cannot be reached"), 0)
        << put;
    EXPECT_EQ(put.message().find("edge with rank", 20), absl::string_view::npos) << put;
  }
  for (const int32_t rank : {1, 2}) EXPECT_EQ(world.window(rank).versions()[1].second, 1);
  // What was on its way is answered, too.
  EXPECT_TRUE(!under_way.valid() || under_way.WaitUntil(deadline));
}

TEST(WindowLinksSimTest, ADeadRanksEdgesFailByName) { ForEachSeed(kSeeds, LoseARank); }

// An owner that has the mutex for longer than the deadline is named, and later the mutex comes.
TEST(WindowLinksSimTest, AMutexIsWaitedForUntilTheDeadline) {
  World world(3, 2);
  Window& owner = world.window(1);
  Window& writer = world.window(0);
  ASSERT_TRUE(*owner.TryLock(Rank(0), /*of_own=*/true));
  const absl::Time before = world.executor.Now();
  const absl::Status late = writer.Lock(Rank(1), /*of_own=*/false, before + absl::Seconds(1));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_NE(late.message().find("rank 1 holds"), absl::string_view::npos) << late;
  EXPECT_LT(world.executor.Now() - before, absl::Milliseconds(1100));
  EXPECT_FALSE(*writer.TryLock(Rank(1), /*of_own=*/false));
  ASSERT_EQ(owner.Unlock(Rank(0), /*of_own=*/true), absl::OkStatus());
  EXPECT_EQ(writer.Lock(Rank(1), /*of_own=*/false, before + absl::Seconds(5)), absl::OkStatus());
  EXPECT_EQ(writer.Lock(Rank(1), /*of_own=*/false, before + absl::Seconds(5)).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer.Unlock(Rank(1), /*of_own=*/false), absl::OkStatus());
}

// A put that missed its deadline has ended the link, and says so to whoever comes later.
TEST(WindowLinksSimTest, AMutexBehindALinkThatHasEndedIsNotWaitedFor) {
  World world(3, 2);
  const absl::Time before = world.executor.Now();
  Values source(kCount, 1);
  const Neighbor peer[] = {{Rank(1), 1}};
  const absl::Status put =
      world.window(0).Put(Whole(source), peer, 1, {.deadline = before + absl::Nanoseconds(1)});
  ASSERT_EQ(put.code(), absl::StatusCode::kDeadlineExceeded) << put;
  const absl::Time deadline = before + absl::Seconds(10);
  const absl::Status locked = world.window(0).Lock(Rank(1), /*of_own=*/false, deadline);
  EXPECT_NE(locked.message().find("rank 1 cannot be reached"), absl::string_view::npos) << locked;
  EXPECT_LT(world.executor.Now() - before, absl::Seconds(1));
}

// Ends a standstill after a time. Threads: the test's. Owns: nothing.
class Return final : public Actor {
 public:
  struct Now {};

  Return(Standstill* standstill, absl::Duration after) : standstill_(*standstill), after_(after) {}

  absl::Status OnStart() override {
    (void)context().SendAfter(*this, after_, Now{});
    return absl::OkStatus();
  }
  void Handle(Now) { standstill_.End(context().Now()); }

 private:
  Standstill& standstill_;
  const absl::Duration after_;
};

// The owner is told of the time that was left when it was asked.
TEST(WindowLinksSimTest, TheDeadlineOfAMutexStandsStill) {
  World world(3, 2);
  ASSERT_TRUE(*world.window(1).TryLock(Rank(0), /*of_own=*/true));
  const absl::Time before = world.executor.Now();
  Standstill standstill;
  const MovingDeadline deadline(before + absl::Seconds(1), &standstill, before);
  standstill.Begin(before);
  const auto back = Spawn<Return>(world.executor, {}, &standstill, absl::Seconds(4));
  const absl::Status late = world.window(0).Lock(Rank(1), /*of_own=*/false, deadline);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_NE(late.message().find("rank 1 holds"), absl::string_view::npos) << late;
  EXPECT_GE(world.executor.Now() - before, absl::Seconds(5));
  EXPECT_LT(world.executor.Now() - before, absl::Milliseconds(5100));
}

TEST(WindowLinksSimTest, AMutexWhoseOwnerHasGoneIsGivenBack) {
  World world(3, 2);
  Window& writer = world.window(0);
  const absl::Time deadline = world.executor.Now() + absl::Seconds(5);
  ASSERT_EQ(writer.Lock(Rank(1), /*of_own=*/false, deadline), absl::OkStatus());
  world.fabric.KillRank(Rank(1));
  world.executor.RunFor(absl::Seconds(1));
  EXPECT_EQ(writer.Unlock(Rank(1), /*of_own=*/false), absl::OkStatus());
  EXPECT_EQ(writer.Unlock(Rank(1), /*of_own=*/false).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer.Lock(Rank(1), /*of_own=*/false, deadline).code(),
            absl::StatusCode::kUnavailable);
}

// A get holds the stop up, and a question about the mutex comes in that time: it is granted before
// the stop, which gives it back, or not at all.
void StopWhileALockComes(uint64_t seed) {
  World world(seed, 2);
  std::mt19937_64 random(seed);
  PeerLink& link = *world.links[0]->at(Rank(1));
  Values target(kCount);
  LinkQuestion get;
  get.request.call = LinkCall::kGet;
  get.request.window = 1;
  get.request.value_bytes = kCount * sizeof(double);
  get.target = reinterpret_cast<std::byte*>(target.data());
  Future<bool> got = link.Ask(get);
  world.executor.RunFor(absl::Microseconds(random() % 30));
  LinkQuestion lock;
  lock.request.call = LinkCall::kLock;
  lock.request.window = 1;
  lock.request.wait_ns = 1'000'000;
  Future<bool> locked = link.Ask(lock);
  world.executor.RunFor(absl::Microseconds(random() % 10));
  world.links[1]->at(Rank(0))->StopServing(1);
  const absl::Time deadline = world.executor.Now() + absl::Seconds(1);
  const absl::Status read = link.AwaitTransfer(std::move(got), deadline);
  EXPECT_TRUE(read.ok() || absl::IsNotFound(read)) << read;
  const absl::Status answer = link.AwaitMutex(std::move(locked), deadline).status();
  EXPECT_TRUE(answer.ok() || absl::IsNotFound(answer)) << answer;
  const absl::StatusOr<bool> is_free = world.window(1).TryLock(Rank(0), /*of_own=*/true);
  ASSERT_TRUE(is_free.ok() && *is_free) << is_free.status();
  EXPECT_EQ(world.window(1).Unlock(Rank(0), /*of_own=*/true), absl::OkStatus());
}

TEST(WindowLinksSimTest, AWindowThatIsBeingStoppedGrantsNoMutex) {
  ForEachSeed(kSeeds, StopWhileALockComes);
}

}  // namespace
}  // namespace pelton
