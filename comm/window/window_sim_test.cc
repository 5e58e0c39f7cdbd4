// Ranks that put, accumulate, update and collect in any interleaving of their steps, with mutexes
// and without, against a model in which every operation on an inlet happens at once. MASS-1.
// A failing seed is printed: PELTON_SEED=<seed> repeats it; PELTON_SEEDS=<count> runs more.
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/window/create_window.h"
#include "comm/window/window.h"
#include "core/actor/context.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/base/sanitizer.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr uint64_t kSeeds = kSanitized ? 2000 : 10'000;
constexpr uint64_t kCount = 5;  // elements; two a step
constexpr int kOperations = 8;  // of each rank

using Values = std::vector<double>;

Values operator*(double weight, Values values) {
  for (double& value : values) value *= weight;
  return values;
}
Values& operator+=(Values& sum, const Values& values) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  return sum;
}

// An inlet, or a tensor, with its p. Threads: a value.
struct Held {
  Values values = Values(kCount, 0);
  double p = 0;
  friend bool operator==(const Held&, const Held&) = default;
};
struct HeldInlet {
  Held held;
  uint32_t version = 0;
};

// What all ranks share: the windows, and what they must hold.
struct World {
  std::vector<std::unique_ptr<Values>> tensors;  // by rank
  std::vector<std::unique_ptr<Window>> windows;
  std::map<std::pair<int32_t, int32_t>, HeldInlet> inlets;  // by source and owner
  bool keeps_mass = false;  // operations that would make or destroy any are left out
};

// A rank: one operation after the other, a step a turn.
class Player final : public Actor {
 public:
  struct Tick {};

  Player(World* world, int32_t rank, uint64_t seed, int* still_playing)
      : world_(*world), rank_(rank), random_(seed), still_playing_(*still_playing) {}

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
  void Again() {
    (void)context().SendAfter(*this, absl::Microseconds(static_cast<int>(random_() % 4)), Tick{});
  }
  Window& window() { return *world_.windows[static_cast<size_t>(rank_)]; }
  Values& tensor() { return *world_.tensors[static_cast<size_t>(rank_)]; }
  HeldInlet& inlet(int32_t source, int32_t owner) { return world_.inlets.at({source, owner}); }

  // False: this rank is through.
  bool Choose() {
    if (left_ == 0) {
      --still_playing_;
      return false;
    }
    --left_;
    const bool locks = random_() % 2 == 0;
    switch (world_.keeps_mass ? random_() % 2 : random_() % 5) {
      case 0:
        steps_ = Spread(/*adds=*/true, locks);
        break;
      case 1:
        steps_ = Look(/*own_weight=*/1, /*weight=*/1, /*resets=*/true, locks);
        break;
      case 2:
        steps_ = Spread(/*adds=*/false, locks);
        break;
      case 3:
        steps_ = Look(0.5, 0.25, random_() % 2 == 0, locks);
        break;
      default:
        steps_ = Fetch(locks);
    }
    return true;
  }

  using Steps = std::function<bool()>;  // true: it is over

  // Twice an amount, of whole numbers, goes from this rank to each of its destinations.
  Steps Spread(bool adds, bool locks) {
    struct State {
      size_t next = 0;
      bool has_lock = false;
      Held amount;
      std::unique_ptr<EdgeWrite> write;
    };
    auto state = std::make_shared<State>();
    for (double& value : state->amount.values) value = static_cast<double>(random_() % 100);
    const bool with_p = random_() % 4 != 0 || world_.keeps_mass;
    if (with_p) state->amount.p = static_cast<double>(random_() % 100);
    return [this, state, adds, locks, with_p] {
      const std::vector<Rank>& to = window().options().destinations;
      if (state->next == to.size()) {
        const double all = -2 * static_cast<double>(to.size());
        tensor() += all * state->amount.values;
        p_ += all * state->amount.p;
        return true;
      }
      const Rank owner = to[state->next];
      if (locks && !state->has_lock) {
        state->has_lock = *window().TryLock(owner, /*of_own=*/false);
        return false;
      }
      if (state->write == nullptr) {
        EdgeWrite::What what;
        what.source = reinterpret_cast<const std::byte*>(state->amount.values.data());
        what.count = kCount;
        what.dtype = DType::kFloat64;
        what.weight = 2;
        what.adds = adds;
        if (with_p) what.p = 2 * state->amount.p;
        what.step_count = 2;
        state->write = std::make_unique<EdgeWrite>(window().edge_to(owner), what);
      }
      const absl::StatusOr<bool> is_done = state->write->Advance();
      EXPECT_TRUE(is_done.ok()) << is_done.status();
      if (!*is_done) return false;
      Arrive(inlet(rank_, owner.value()), state->amount, adds, with_p);
      if (locks) {
        EXPECT_TRUE(window().Unlock(owner, /*of_own=*/false).ok());
      }
      state->write = nullptr;
      state->has_lock = false;
      ++state->next;
      return false;
    };
  }

  // In the model.
  static void Arrive(HeldInlet& inlet, const Held& amount, bool adds, bool with_p) {
    if (!adds) {
      inlet.held.values = Values(kCount, 0);
      if (with_p) inlet.held.p = 0;
      ++inlet.version;
    }
    inlet.held.values += 2 * amount.values;
    inlet.held.p += 2 * amount.p;
  }

  Steps Look(double own_weight, double weight, bool resets, bool locks) {
    struct State {
      size_t locked = 0;
      size_t taken = 0;
      Held expected;
      std::unique_ptr<OwnerUpdate> update;
    };
    auto state = std::make_shared<State>();
    const bool with_p = random_() % 4 != 0 || world_.keeps_mass;
    return [this, state, own_weight, weight, resets, locks, with_p] {
      const std::vector<Rank>& from = window().options().sources;
      if (locks && state->locked < from.size()) {
        if (*window().TryLock(from[state->locked], /*of_own=*/true)) ++state->locked;
        return false;
      }
      if (state->update == nullptr) {
        OwnerUpdate::What what;
        what.tensor = reinterpret_cast<const std::byte*>(tensor().data());
        what.target = reinterpret_cast<std::byte*>(tensor().data());
        what.count = kCount;
        what.dtype = DType::kFloat64;
        what.own_weight = own_weight;
        for (size_t i = 0; i < from.size(); ++i) {
          what.sources.push_back({window().edge_from(i), weight});
        }
        what.resets = resets;
        if (with_p) what.p = p_;
        what.step_count = 2;
        state->expected = {own_weight * tensor(), with_p ? own_weight * p_ : p_};
        state->update = std::make_unique<OwnerUpdate>(std::move(what));
      }
      if (state->taken < from.size()) {
        HeldInlet& source = inlet(from[state->taken].value(), rank_);
        EXPECT_EQ(window().versions()[state->taken].second, source.version);
        state->expected.values += weight * source.held.values;
        if (with_p) state->expected.p += weight * source.held.p;
        if (resets) source.held.values = Values(kCount, 0);
        if (resets && with_p) source.held.p = 0;
        source.version = 0;
        ++state->taken;
      }
      if (!state->update->Advance()) return false;
      if (with_p) p_ = *state->update->p();
      EXPECT_EQ((Held{tensor(), p_}), state->expected) << "rank " << rank_;
      for (size_t i = 0; i < state->locked; ++i) {
        EXPECT_TRUE(window().Unlock(from[i], /*of_own=*/true).ok());
      }
      return true;
    };
  }

  // Other ranks' tensors, under the mutex: else they may change between the steps.
  Steps Fetch(bool locks) {
    struct State {
      size_t next = 0;
      bool has_lock = false;
      Values before;
      std::unique_ptr<EdgeFill> fill;
    };
    auto state = std::make_shared<State>();
    return [this, state, locks] {
      const std::vector<Rank>& from = window().options().sources;
      if (state->next == from.size()) return true;
      const Rank source = from[state->next];
      if (locks && !state->has_lock) {
        state->has_lock = *window().TryLock(source, /*of_own=*/false);
        return false;
      }
      // A copy of it, so that the model knows what was read.
      if (state->fill == nullptr) {
        state->before = *world_.tensors[static_cast<size_t>(source.value())];
        EdgeFill::What what;
        what.pid = getpid();
        what.address = reinterpret_cast<uintptr_t>(state->before.data());
        what.count = kCount;
        what.dtype = DType::kFloat64;
        what.weight = 2;
        what.step_count = 2;
        state->fill = std::make_unique<EdgeFill>(window().edge_from(state->next), what);
      }
      const absl::StatusOr<bool> is_done = state->fill->Advance();
      EXPECT_TRUE(is_done.ok()) << is_done.status();
      if (!*is_done) return false;
      HeldInlet& held = inlet(source.value(), rank_);
      held.held.values = 2 * state->before;
      ++held.version;
      if (locks) {
        EXPECT_TRUE(window().Unlock(source, /*of_own=*/false).ok());
      }
      state->fill = nullptr;
      state->has_lock = false;
      ++state->next;
      return false;
    };
  }

 public:
  // Of all that have played, at the end.
  static std::map<int32_t, double>& FinalP() {
    static std::map<int32_t, double> p;
    return p;
  }
  ~Player() override { FinalP()[rank_] = p_; }

 private:
  World& world_;
  const int32_t rank_;
  std::mt19937_64 random_;
  int& still_playing_;
  int left_ = kOperations;
  double p_ = 1;
  Steps steps_;
};

World MakeWorld(uint64_t seed, int32_t size) {
  World world;
  std::mt19937_64 random(seed);
  std::vector<WindowOptions> options(static_cast<size_t>(size));
  const auto all = static_cast<uint64_t>(size);
  for (int32_t rank = 0; rank < size; ++rank) {
    world.tensors.push_back(std::make_unique<Values>(kCount));
    for (double& value : *world.tensors.back()) value = static_cast<double>(random() % 1000);
    WindowOptions& mine = options[static_cast<size_t>(rank)];
    mine.name = "w";
    mine.tensor = {world.tensors.back()->data(), kCount, DType::kFloat64};
    mine.shape = {static_cast<int64_t>(kCount)};
    mine.zero_init = true;
  }
  // A ring with chords: at most three destinations each.
  for (int32_t from = 0; from < size; ++from) {
    for (int32_t to = 0; to < size; ++to) {
      if (to == from || (to != (from + 1) % size && random() % all > 1)) continue;
      if (options[static_cast<size_t>(from)].destinations.size() == 3) continue;
      options[static_cast<size_t>(from)].destinations.emplace_back(to);
      options[static_cast<size_t>(to)].sources.emplace_back(from);
      world.inlets[{from, to}] = {};
    }
  }
  auto windows = CreateWindowsHere(std::move(options));
  EXPECT_TRUE(windows.ok()) << windows.status();
  world.windows = *std::move(windows);
  return world;
}

// Tensors and inlets, and p, added up.
Held MassOf(const World& world) {
  Held mass;
  for (const auto& tensor : world.tensors) mass.values += *tensor;
  for (const auto& [edge, inlet] : world.inlets) {
    mass.values += inlet.held.values;
    mass.p += inlet.held.p;
  }
  return mass;
}

// Every inlet holds what the model says.
void ExpectInlets(World& world) {
  for (auto& [edge, expected] : world.inlets) {
    Window& owner = *world.windows[static_cast<size_t>(edge.second)];
    const std::vector<Rank>& sources = owner.options().sources;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].value() != edge.first) continue;
      const EdgeView view = owner.edge_from(i);
      EXPECT_EQ(view.inlet->version(), expected.version);
      const Inlet::View seen = view.inlet->Take({});
      Held held;
      held.p = seen.p;
      const auto* const values = reinterpret_cast<const double*>(view.buffer(seen.buffer));
      if (!seen.is_zero) held.values.assign(values, values + kCount);
      EXPECT_EQ(held, expected.held) << "inlet of rank " << edge.first << " at " << edge.second;
      view.inlet->Release();
    }
  }
}

void Play(uint64_t seed, bool keeps_mass) {
  const auto size = static_cast<int32_t>(2 + seed % 4);
  World world = MakeWorld(seed, size);
  world.keeps_mass = keeps_mass;
  Held before = MassOf(world);
  before.p += size;
  int still_playing = size;
  Player::FinalP().clear();
  {
    SimExecutor executor(seed);
    for (int32_t rank = 0; rank < size; ++rank) {
      (void)Spawn<Player>(executor, {.name = "player"}, &world, rank,
                          seed * 31 + static_cast<uint64_t>(rank), &still_playing);
    }
    EXPECT_TRUE(
        executor.RunUntil([&] { return still_playing == 0; }, executor.Now() + absl::Hours(1)))
        << "somebody waits for ever";
  }
  ExpectInlets(world);
  if (!keeps_mass) return;
  Held after = MassOf(world);
  for (const auto& [rank, p] : Player::FinalP()) after.p += p;
  EXPECT_EQ(after, before) << "MASS-1";
}

TEST(WindowSimTest, EveryInterleavingIsOneOfWholeOperations) {
  ForEachSeed(kSeeds, [](uint64_t seed) { Play(seed, /*keeps_mass=*/false); });
}

TEST(WindowSimTest, AccumulateAndCollectKeepTheMass) {
  ForEachSeed(kSeeds, [](uint64_t seed) { Play(seed, /*keeps_mass=*/true); });
}

}  // namespace
}  // namespace pelton
