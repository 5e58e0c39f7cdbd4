#include "benchmarks/actor/caf_runtime.h"

#ifdef PELTON_HAS_CAF

#include <sched.h>

#include <array>
#include <atomic>
#include <caf/all.hpp>
#include <chrono>
#include <thread>
#include <vector>

namespace pelton::benchmarks {
namespace {

// Fields instead of an array: CAF 0.17 inspects them one by one.
struct Datum {
  uint64_t a;
  uint64_t b;
  uint64_t c;
  uint64_t d;
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Datum& datum) {
  return f(datum.a, datum.b, datum.c, datum.d);
}

}  // namespace
}  // namespace pelton::benchmarks

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(pelton::benchmarks::Datum)

namespace pelton::benchmarks {
namespace {

using BallAtom = caf::atom_constant<caf::atom("ball")>;
using MeetAtom = caf::atom_constant<caf::atom("meet")>;
using SteadyClock = std::chrono::steady_clock;

double NanosecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double, std::nano>(SteadyClock::now() - begin).count();
}

struct Config : caf::actor_system_config {
  explicit Config(int workers) { set("scheduler.max-threads", static_cast<size_t>(workers)); }
};

caf::behavior Sink(caf::event_based_actor*, std::atomic<int64_t>* handled) {
  return {[handled](const Datum& datum) {
    handled->store(handled->load(std::memory_order_relaxed) + static_cast<int64_t>(datum.a),
                   std::memory_order_release);
  }};
}

struct PlayerState {
  caf::actor other;
};
caf::behavior Player(caf::stateful_actor<PlayerState>* self, std::atomic<bool>* done) {
  return {[self](MeetAtom, const caf::actor& other) { self->state.other = other; },
          [self, done](BallAtom, int64_t left) {
            if (left > 0) {
              self->send(self->state.other, BallAtom::value, left - 1);
            } else {
              done->store(true);
            }
          }};
}

caf::behavior Citizen(caf::event_based_actor*, std::atomic<int64_t>* handled) {
  return {[handled](const Datum&) { handled->fetch_add(1, std::memory_order_relaxed); }};
}

class CafRuntime final : public Runtime {
 public:
  const char* name() const override { return "CAF"; }

  double Flood(int producers, int64_t messages) override {
    Config config(1);
    caf::actor_system system(config);
    const int64_t each = messages / producers;
    std::atomic<int64_t> handled{0};
    caf::actor sink = system.spawn(Sink, &handled);
    std::atomic<int64_t> sent{0};
    const auto begin = SteadyClock::now();
    const auto produce = [&] {
      caf::scoped_actor self(system);
      for (int64_t i = 0; i < each; ++i) {
        self->send(sink, Datum{1, 2, 3, 4});
        // CAF's mailbox has no bound; the same window keeps memory and caches comparable.
        if (i % 256 == 255) {
          const int64_t now = sent.fetch_add(256) + 256;
          while (now - handled.load(std::memory_order_acquire) > 4096) sched_yield();
        }
      }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < producers; ++i) threads.emplace_back(produce);
    produce();
    for (std::thread& thread : threads) thread.join();
    while (handled.load(std::memory_order_acquire) < each * producers) sched_yield();
    const double result = NanosecondsSince(begin) / static_cast<double>(each * producers);
    caf::anon_send_exit(sink, caf::exit_reason::user_shutdown);
    return result;
  }

  double RoundTrip(int workers, int64_t rounds) override {
    Config config(workers);
    caf::actor_system system(config);
    std::atomic<bool> done{false};
    caf::actor ping = system.spawn(Player, &done);
    // CAF has no pool per actor: detached is its way to another thread.
    caf::actor pong =
        workers > 1 ? system.spawn<caf::detached>(Player, &done) : system.spawn(Player, &done);
    caf::anon_send(ping, MeetAtom::value, pong);
    caf::anon_send(pong, MeetAtom::value, ping);
    const auto begin = SteadyClock::now();
    caf::anon_send(ping, BallAtom::value, int64_t{2 * rounds});
    // ALLOW: the ball's end is seen from outside CAF, without adding a message to what is measured.
    while (!done.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    const double result = NanosecondsSince(begin) / static_cast<double>(rounds);
    caf::anon_send_exit(ping, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(pong, caf::exit_reason::user_shutdown);
    return result;
  }

  SpawnCost Spawn(int64_t count) override {
    Config config(2);
    caf::actor_system system(config);
    std::atomic<int64_t> handled{0};
    std::vector<caf::actor> citizens;
    citizens.reserve(static_cast<size_t>(count));
    const size_t before = ResidentBytes();
    const auto begin = SteadyClock::now();
    for (int64_t i = 0; i < count; ++i) {
      citizens.push_back(system.spawn(Citizen, &handled));
      caf::anon_send(citizens.back(), Datum{1, 2, 3, 4});
    }
    while (handled.load() < count) sched_yield();
    SpawnCost cost;
    cost.nanoseconds_per_actor = NanosecondsSince(begin) / static_cast<double>(count);
    cost.bytes_per_actor =
        static_cast<double>(ResidentBytes() - before) / static_cast<double>(count);
    return cost;
  }
};

}  // namespace

std::unique_ptr<Runtime> MakeCafRuntime() { return std::make_unique<CafRuntime>(); }

}  // namespace pelton::benchmarks

#else  // CAF is not installed.

namespace pelton::benchmarks {

std::unique_ptr<Runtime> MakeCafRuntime() { return nullptr; }

}  // namespace pelton::benchmarks

#endif
