#include "comm/transport/conformance/test_world.h"

#include <atomic>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "core/base/check.h"

namespace pelton::conformance {

absl::Time FarDeadline() { return absl::Now() + absl::Seconds(60); }

TestWorld::TestWorld(TransportFixtureFactory factory, int32_t world_size, size_t arena_bytes)
    : fixture_(factory()), transports_(fixture_->Make(WorldSize(world_size))) {
  PELTON_CHECK(transports_.size() == static_cast<size_t>(world_size));
  communicators_.resize(transports_.size());
  memories_.resize(transports_.size());
  RunTransports([&](Transport& transport, Rank rank) {
    const auto index = static_cast<size_t>(rank.value());
    memories_[index] = std::make_unique<RankMemory>(arena_bytes);
    auto opened =
        transport.Open(CommunicatorId(1), Group::World(WorldSize(world_size)), FarDeadline());
    PELTON_CHECK(opened.ok()) << opened.status();
    PELTON_CHECK_OK((*opened)->Register(*memories_[index]->region.region()));
    communicators_[index] = *std::move(opened);
  });
}

// Each rank closes its communicator in a thread of its own, as processes would.
TestWorld::~TestWorld() {
  RunTransports([&](Transport&, Rank rank) {
    const auto index = static_cast<size_t>(rank.value());
    communicators_[index]->Deregister(memories_[index]->region.region()->id());
    communicators_[index].reset();
    transports_[index].reset();
  });
}

void TestWorld::RunTransports(absl::FunctionRef<void(Transport&, Rank)> body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < transports_.size(); ++i) {
    threads.emplace_back([&, i] { body(*transports_[i], Rank(static_cast<int32_t>(i))); });
  }
  for (std::thread& thread : threads) thread.join();
}

void TestWorld::Run(absl::FunctionRef<void(Communicator&)> body) {
  RunTransports([&](Transport&, Rank rank) { body(communicator(rank)); });
}

bool TestWorld::RunExchanges(absl::Span<const ExchangeSpec> specs) {
  std::vector<Exchange> exchanges;
  for (const ExchangeSpec& spec : specs) exchanges.push_back(MakeExchange(spec, world_size()));
  std::atomic<bool> all_right = true;
  Run([&](Communicator& communicator) {
    if (!RunRankExchanges(exchanges, communicator)) all_right = false;
  });
  return all_right;
}

bool TestWorld::RunRankExchanges(absl::Span<const Exchange> exchanges, Communicator& communicator) {
  const Rank rank = communicator.rank();
  RankMemory& own = memory(rank);
  std::vector<RankExchange> parts;
  for (const Exchange& exchange : exchanges) parts.emplace_back(exchange, rank, own);
  bool all_right = true;
  auto expect_ok = [&](const absl::Status& status, size_t i) {
    if (status.ok()) return;
    all_right = false;
    ADD_FAILURE() << "rank " << rank << ", " << Describe(exchanges[i].spec) << ": " << status;
  };
  for (size_t i = 0; i < parts.size(); ++i) expect_ok(parts[i].Launch(communicator), i);
  for (size_t i = 0; i < parts.size(); ++i) {
    expect_ok(parts[i].AwaitAll(communicator, FarDeadline()), i);
  }
  for (const RankExchange& part : parts) {
    const std::string wrong = part.Check();
    if (!wrong.empty()) all_right = false;
    EXPECT_EQ(wrong, "") << "rank " << rank << " of " << world_size();
  }
  for (Arena* arena : {&own.region, &own.own}) {
    EXPECT_EQ(arena->CheckGuards(), "") << "rank " << rank;
    all_right = all_right && arena->CheckGuards().empty();
    arena->Reset();
  }
  return all_right;
}

void TestWorld::ExpectUsable() {
  ExchangeSpec spec;
  spec.count = 100;
  EXPECT_TRUE(RunExchanges({spec, spec}));
}

}  // namespace pelton::conformance
