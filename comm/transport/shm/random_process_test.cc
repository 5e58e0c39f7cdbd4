// Sequences of operations that a seed chooses, between processes. Collectives and averages over
// graphs that change from one to the next follow each other, large ones after small ones and the
// other way round, with tensors in regions and in private memory, all launched before the first is
// waited for: what one operation leaves behind is no other one's.
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/transport/conformance/average.h"
#include "comm/transport/conformance/exchange.h"
#include "comm/transport/conformance/rank_exchange.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "core/base/draws.h"
#include "core/base/sanitizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using conformance::Average;
using conformance::Exchange;
using conformance::ExchangeSpec;
using conformance::Placement;
using conformance::RankAverage;
using conformance::RankExchange;
using conformance::RankMemory;

constexpr uint64_t kSequences = kSanitized ? 40 : 120;
constexpr size_t kArenaBytes = size_t{64} << 20;

// Around the sizes at which the transport moves tensors in another way.
uint64_t DrawCount(Draws& draws) {
  constexpr uint64_t kMost[] = {8, 40, 5000, 70'000};
  return draws.Below(kMost[draws.Below(4)]);
}

ExchangeSpec DrawExchange(Draws& draws, int32_t ranks) {
  ExchangeSpec spec;
  spec.kind = conformance::DataKinds()[draws.Below(conformance::DataKinds().size())];
  spec.dtype = draws.OneIn(2) ? DType::kFloat32 : static_cast<DType>(draws.Below(kDTypeCount));
  std::vector<ReduceOp> ops = conformance::OpsOf(spec.dtype);
  if (ops.empty()) {
    spec.dtype = DType::kFloat32;
    ops = {ReduceOp::kSum};
  }
  spec.op = ops[draws.Below(ops.size())];
  spec.root = static_cast<int32_t>(draws.Below(static_cast<uint64_t>(ranks)));
  spec.step = 1 + static_cast<int32_t>(draws.Below(static_cast<uint64_t>(ranks) - 1));
  spec.tag = static_cast<int32_t>(draws.Below(2));
  spec.count = DrawCount(draws);
  spec.in_place = conformance::HasInPlaceForm(spec.kind) && draws.OneIn(2);
  spec.placement = static_cast<Placement>(draws.Below(3));
  spec.offset_count = draws.Below(5);
  spec.seed = draws.Below(1 << 30);
  return spec;
}

// An operation of a sequence: one of the two. Threads: one. Owns: it, and this rank's part.
class Part {
 public:
  Part(Draws& draws, WorldSize size, Rank rank, RankMemory& memory) {
    if (draws.OneIn(2)) {
      average_ = std::make_unique<Average>(conformance::DrawAverage(draws, size, DrawCount(draws)));
      rank_average_.emplace(*average_, rank, memory);
    } else {
      exchange_ = std::make_unique<Exchange>(MakeExchange(DrawExchange(draws, size.value()), size));
      rank_exchange_.emplace(*exchange_, rank, memory);
    }
  }
  absl::Status Launch(Communicator& communicator) {
    return average_ != nullptr ? rank_average_->Launch(communicator)
                               : rank_exchange_->Launch(communicator);
  }
  absl::Status AwaitAll(Communicator& communicator, absl::Time deadline) {
    return average_ != nullptr ? rank_average_->AwaitAll(communicator, deadline)
                               : rank_exchange_->AwaitAll(communicator, deadline);
  }
  std::string Check() const {
    return average_ != nullptr ? rank_average_->Check() : rank_exchange_->Check();
  }

 private:
  std::unique_ptr<Average> average_;
  std::unique_ptr<Exchange> exchange_;
  std::optional<RankAverage> rank_average_;
  std::optional<RankExchange> rank_exchange_;
};

// "" if every operation of the sequence gave what it should. A rank waits in an order of its own.
std::string RunSequence(uint64_t seed, Communicator& communicator, RankMemory& memory) {
  Draws draws(seed);
  const Rank rank = communicator.rank();
  memory.region.Reset();
  memory.own.Reset();
  std::vector<Part> parts;
  for (uint64_t left = 1 + draws.Below(9); left > 0; --left) {
    parts.emplace_back(draws, communicator.world_size(), rank, memory);
  }
  for (Part& part : parts) {
    const absl::Status launched = part.Launch(communicator);
    if (!launched.ok()) return launched.ToString();
  }
  Draws own(seed * 1000 + static_cast<uint64_t>(rank.value()));
  std::vector<Part*> order;
  for (Part& part : parts) order.insert(order.begin() + own.Below(order.size() + 1), &part);
  for (Part* part : order) {
    const absl::Status ended = part->AwaitAll(communicator, absl::Now() + absl::Minutes(2));
    if (!ended.ok()) return ended.ToString();
    const std::string wrong = part->Check();
    if (!wrong.empty()) return wrong;
  }
  const std::string spoilt = memory.region.CheckGuards();
  return spoilt.empty() ? memory.own.CheckGuards() : spoilt;
}

std::string RunSequences(const TransportOptions& options) {
  // All memory comes from one heap, so that what is written past a piece of it is found by malloc.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  auto end = MakeEnd(options, MakeShmTransport);
  if (!end.ok()) return end.status().ToString();
  RankMemory memory(kArenaBytes);
  const absl::Status registered = end->communicator->Register(*memory.region.region());
  if (!registered.ok()) return registered.ToString();
  for (uint64_t seed = 1; seed <= kSequences; ++seed) {
    const std::string wrong = RunSequence(seed, *end->communicator, memory);
    if (!wrong.empty()) return absl::StrCat("sequence of seed ", seed, ": ", wrong);
  }
  return "";
}

class RandomProcessTest : public ::testing::TestWithParam<int> {};

TEST_P(RandomProcessTest, EveryOperationOfASequenceGivesItsOwnResult) {
  Processes processes(GetParam(), RunSequences);
  EXPECT_THAT(processes.JoinAll(), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, RandomProcessTest, ::testing::Values(2, 3, 5));

}  // namespace
}  // namespace pelton::shm
