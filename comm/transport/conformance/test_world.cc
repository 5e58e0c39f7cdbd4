#include "comm/transport/conformance/test_world.h"

#include <atomic>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "core/base/check.h"

namespace pelton::conformance {
namespace {

Decorate decorate_communicator = nullptr;

}  // namespace

bool DecorateCommunicators(Decorate decorate) {
  decorate_communicator = decorate;
  return true;
}

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
    communicators_[index] = decorate_communicator == nullptr
                                ? *std::move(opened)
                                : decorate_communicator(*std::move(opened));
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
  for (ExchangeSpec spec : specs) {
    spec.any_order = !promises().reduces_like_the_reference;
    exchanges.push_back(MakeExchange(spec, world_size()));
  }
  std::atomic<bool> all_right = true;
  std::vector<std::vector<std::vector<std::byte>>> results(transports_.size());
  Run([&](Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank().value());
    if (!RunRankExchanges(exchanges, communicator, results[rank])) all_right = false;
  });
  // Where ranks add in their own order, what is the same for all is compared between them (SUM-1a).
  for (size_t i = 0; i < exchanges.size() && !promises().sums_in_rank_order; ++i) {
    const ExchangeSpec& spec = exchanges[i].spec;
    if (spec.kind != OperationKind::kAllReduce) continue;
    for (size_t rank = 1; rank < results.size(); ++rank) {
      const std::string wrong =
          DifferenceOfElements(spec.dtype, results[0][i], results[rank][i].data());
      if (!wrong.empty()) all_right = false;
      EXPECT_EQ(wrong, "") << "ranks 0 and " << rank << ": " << Describe(spec);
    }
  }
  return all_right;
}

bool TestWorld::RunRankExchanges(absl::Span<const Exchange> exchanges, Communicator& communicator,
                                 std::vector<std::vector<std::byte>>& results) {
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
    const std::string wrong = part.Check(promises().sums_in_rank_order);
    if (!promises().sums_in_rank_order) results.push_back(part.Result());
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
