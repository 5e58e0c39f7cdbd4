// A world of ranks in threads, over the transport under test.
#ifndef PELTON_COMM_TRANSPORT_CONFORMANCE_TEST_WORLD_H_
#define PELTON_COMM_TRANSPORT_CONFORMANCE_TEST_WORLD_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "comm/transport/conformance/exchange.h"
#include "comm/transport/conformance/rank_exchange.h"
#include "comm/transport/conformance_test.h"

namespace pelton::conformance {

// Long enough for the slowest sanitizer on a busy machine: a test that meets it has failed.
absl::Time FarDeadline();

// Every world made later puts it around its communicators. A suite that is linked sets it before
// main, so that the other suites show that all they test is as without it; gpu_check leaves that
// suite out, because Highway's library cannot be carried. Returns true. Threads: before main.
using Decorate = std::unique_ptr<Communicator> (*)(std::unique_ptr<Communicator>);
bool DecorateCommunicators(Decorate decorate);

// The world's ranks with their memory and a communicator of all of them (id 1).
// Threads: one; Run's function is called in one thread per rank. Owns: all it makes.
class TestWorld {
 public:
  TestWorld(TransportFixtureFactory factory, int32_t world_size,
            size_t arena_bytes = size_t{1} << 20);
  ~TestWorld();

  TransportPromises promises() const { return fixture_->promises(); }
  WorldSize world_size() const { return WorldSize(static_cast<int32_t>(transports_.size())); }

  // Calls `body` for every rank at once, each in its own thread; returns when all have returned.
  void Run(absl::FunctionRef<void(Communicator&)> body);
  void RunTransports(absl::FunctionRef<void(Transport&, Rank)> body);

  // Launches all of `exchanges` on every rank before it waits for the first, and checks the
  // results. False if anything was wrong.
  bool RunExchanges(absl::Span<const ExchangeSpec> specs);
  // A barrier and an allreduce that must work.
  void ExpectUsable();

  RankMemory& memory(Rank rank) { return *memories_[static_cast<size_t>(rank.value())]; }
  Communicator& communicator(Rank rank) {
    return *communicators_[static_cast<size_t>(rank.value())];
  }

 private:
  bool RunRankExchanges(absl::Span<const Exchange> exchanges, Communicator& communicator,
                        std::vector<std::vector<std::byte>>& results);

  std::unique_ptr<TransportFixture> fixture_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<RankMemory>> memories_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

}  // namespace pelton::conformance

#endif  // PELTON_COMM_TRANSPORT_CONFORMANCE_TEST_WORLD_H_
