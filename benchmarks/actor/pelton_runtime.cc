#include "benchmarks/actor/pelton_runtime.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/actor/monitor.h"
#include "core/actor/pool_executor.h"
#include "core/actor/spawn.h"
#include "core/base/check.h"

namespace pelton::benchmarks {
namespace {

constexpr int32_t kMailboxCapacity = 4096;
constexpr int32_t kPermitsAtOnce = 256;

struct Datum {
  std::array<uint64_t, 4> words;
};
static_assert(sizeof(Datum) == 32);

absl::Time GiveUp() { return absl::Now() + absl::Minutes(5); }
double NanosecondsSince(absl::Time begin) { return absl::ToDoubleNanoseconds(absl::Now() - begin); }

class Sink : public Actor {
 public:
  Sink(int64_t expected, Promise<uint64_t> done) : left_(expected), done_(std::move(done)) {}
  void Handle(Datum datum) {
    sum_ += datum.words[0];
    if (--left_ == 0) done_.Set(sum_);
  }

 private:
  int64_t left_;
  uint64_t sum_ = 0;
  Promise<uint64_t> done_;
};

void ProduceWithPermits(const ActorRef<Sink>& sink, int64_t count) {
  for (int64_t sent = 0; sent < count;) {
    const auto batch = static_cast<int32_t>(std::min<int64_t>(kPermitsAtOnce, count - sent));
    absl::StatusOr<Permits<Sink>> permits = sink.Reserve(batch);
    if (!permits.ok()) {
      sched_yield();
      continue;
    }
    for (int32_t i = 0; i < batch; ++i, ++sent) {
      PELTON_CHECK_OK(permits->Send(Datum{{1, 2, 3, 4}}));
    }
  }
}

void ProduceWithSend(const ActorRef<Sink>& sink, int64_t count) {
  for (int64_t sent = 0; sent < count; ++sent) {
    while (!sink.Send(Datum{{1, 2, 3, 4}}).ok()) sched_yield();
  }
}

struct Ball {
  int64_t left;
};
struct Opponent;
class Player : public Actor {
 public:
  explicit Player(Promise<void> done) : done_(std::move(done)) {}
  void set_other(ActorRef<Player> other) { other_ = std::move(other); }
  struct Meet {
    ActorRef<Player> other;
  };
  void Handle(Meet meet) { other_ = std::move(meet.other); }
  absl::Status Handle(Ball ball) {
    if (ball.left > 0) return other_.Send(Ball{ball.left - 1});
    if (done_.valid()) done_.Set(absl::OkStatus());
    return absl::OkStatus();
  }

 private:
  ActorRef<Player> other_;
  Promise<void> done_;
};

class Citizen : public Actor {
 public:
  explicit Citizen(std::atomic<int64_t>* handled) : handled_(handled) {}
  void Handle(Datum) { handled_->fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t>* handled_;
};

class PeltonRuntime final : public Runtime {
 public:
  explicit PeltonRuntime(Sending sending) : sending_(sending) {}

  const char* name() const override {
    return sending_ == Sending::kPermits ? "Pelton, permits" : "Pelton, Send";
  }

  double Flood(int producers, int64_t messages) override {
    PoolExecutor pool(1);
    const int64_t each = messages / producers;
    auto [promise, done] = MakePromise<uint64_t>();
    const auto sink = pelton::Spawn<Sink>(pool, {.mailbox_capacity = kMailboxCapacity},
                                          each * producers, std::move(promise));
    const absl::Time begin = absl::Now();
    std::vector<std::thread> threads;
    for (int i = 1; i < producers; ++i) threads.emplace_back([&] { Produce(sink, each); });
    Produce(sink, each);
    for (std::thread& thread : threads) thread.join();
    PELTON_CHECK(std::move(done).Await(GiveUp()).value() == uint64_t(each * producers))
        << "messages were lost";
    return NanosecondsSince(begin) / static_cast<double>(each * producers);
  }

  double RoundTrip(int workers, int64_t rounds) override {
    PoolExecutor first_pool(1);
    std::optional<PoolExecutor> second_pool;
    if (workers > 1) second_pool.emplace(1);
    auto [promise, done] = MakePromise<void>();
    const auto ping = pelton::Spawn<Player>(first_pool, {}, std::move(promise));
    const auto pong =
        pelton::Spawn<Player>(second_pool ? *second_pool : first_pool, {}, Promise<void>());
    PELTON_CHECK_OK(ping.Send(Player::Meet{pong}));
    PELTON_CHECK_OK(pong.Send(Player::Meet{ping}));
    const absl::Time begin = absl::Now();
    PELTON_CHECK_OK(ping.Send(Ball{2 * rounds}));
    PELTON_CHECK_OK(std::move(done).Await(GiveUp()));
    return NanosecondsSince(begin) / static_cast<double>(rounds);
  }

  SpawnCost Spawn(int64_t count) override {
    PoolExecutor pool(2);
    std::atomic<int64_t> handled{0};
    std::vector<ActorRef<Citizen>> citizens;
    citizens.reserve(static_cast<size_t>(count));
    const size_t before = ResidentBytes();
    const absl::Time begin = absl::Now();
    for (int64_t i = 0; i < count; ++i) {
      citizens.push_back(pelton::Spawn<Citizen>(pool, {}, &handled));
      PELTON_CHECK_OK(citizens.back().Send(Datum{{1, 2, 3, 4}}));
    }
    while (handled.load() < count) sched_yield();
    SpawnCost cost;
    cost.nanoseconds_per_actor = NanosecondsSince(begin) / static_cast<double>(count);
    cost.bytes_per_actor =
        static_cast<double>(ResidentBytes() - before) / static_cast<double>(count);
    PELTON_CHECK_OK(pool.Shutdown(GiveUp()));
    return cost;
  }

 private:
  void Produce(const ActorRef<Sink>& sink, int64_t count) const {
    sending_ == Sending::kPermits ? ProduceWithPermits(sink, count) : ProduceWithSend(sink, count);
  }

  const Sending sending_;
};

}  // namespace

std::unique_ptr<Runtime> MakePeltonRuntime(Sending sending) {
  return std::make_unique<PeltonRuntime>(sending);
}

}  // namespace pelton::benchmarks
