// Conformance of the collectives' results: every kind, element type and operation, bitwise.
#include <algorithm>
#include <vector>

#include "comm/collectives.h"
#include "comm/transport/conformance/test_world.h"
#include "core/base/sanitizer.h"

namespace pelton::conformance {
namespace {

// The specs of `kind` that the parameters of a test leave open.
std::vector<ExchangeSpec> AllTypes(OperationKind kind, uint64_t count,
                                   const TransportPromises& promises) {
  std::vector<ExchangeSpec> specs;
  for (int number = 0; number < kDTypeCount; ++number) {
    ExchangeSpec spec;
    spec.kind = kind;
    spec.dtype = static_cast<DType>(number);
    spec.count = count;
    spec.seed = specs.size() + count;
    if (!IsReduction(kind)) {
      specs.push_back(spec);
      continue;
    }
    for (ReduceOp op : OpsOf(spec.dtype)) {
      spec.op = op;
      if (promises.reduces(spec.dtype, op)) specs.push_back(spec);
    }
  }
  return specs;
}

void Vary(std::vector<ExchangeSpec>& specs, int32_t world_size) {
  for (size_t i = 0; i < specs.size(); ++i) {
    ExchangeSpec& spec = specs[i];
    spec.root = static_cast<int32_t>(i) % world_size;
    spec.step = world_size > 1 ? 1 + static_cast<int32_t>(i) % (world_size - 1) : 0;
    spec.placement = static_cast<Placement>(i % 3);
    spec.in_place = HasInPlaceForm(spec.kind) && i % 2 == 1;
    spec.offset_count = i % 4;
  }
}

void RunAllKinds(TransportFixtureFactory factory, int32_t world_size,
                 const std::vector<uint64_t>& counts) {
  TestWorld world(factory, world_size, size_t{8} << 20);
  for (OperationKind kind : DataKinds()) {
    if (!world.promises().runs(kind)) continue;
    if (kind == OperationKind::kSend && world_size == 1) continue;  // nobody to send to
    for (uint64_t count : counts) {
      std::vector<ExchangeSpec> specs = AllTypes(kind, count, world.promises());
      Vary(specs, world_size);
      for (size_t begin = 0; begin < specs.size(); begin += 16) {
        const size_t length = std::min<size_t>(16, specs.size() - begin);
        ASSERT_TRUE(world.RunExchanges(absl::MakeSpan(specs).subspan(begin, length)));
      }
    }
  }
}

#if PELTON_SANITIZED
const std::vector<uint64_t> kCounts = {0, 1023};
const std::vector<uint64_t> kFewCounts = {63};
#else
const std::vector<uint64_t> kCounts = {0, 1, 7, 1023};
const std::vector<uint64_t> kFewCounts = {1, 63};
#endif

TEST_P(TransportConformanceTest, EveryKindTypeAndOpOnOneRank) {
  RunAllKinds(GetParam(), 1, kCounts);
}
TEST_P(TransportConformanceTest, EveryKindTypeAndOpOnTwoRanks) {
  RunAllKinds(GetParam(), 2, kCounts);
}
TEST_P(TransportConformanceTest, EveryKindTypeAndOpOnThreeRanks) {
  RunAllKinds(GetParam(), 3, kCounts);
}
TEST_P(TransportConformanceTest, EveryKindTypeAndOpOnFourRanks) {
  RunAllKinds(GetParam(), 4, kCounts);
}
TEST_P(TransportConformanceTest, EveryKindTypeAndOpOnEightRanks) {
  RunAllKinds(GetParam(), 8, kFewCounts);
}

// What cannot be reduced is refused at once, and by name.
TEST_P(TransportConformanceTest, APairThatIsNotPromisedIsRefused) {
  TestWorld world(GetParam(), 2);
  world.Run([&](Communicator& communicator) {
    std::vector<std::byte> memory(size_t{16} * 4);
    for (int number = 0; number < kDTypeCount; ++number) {
      const auto dtype = static_cast<DType>(number);
      for (ReduceOp op : OpsOf(dtype)) {
        if (world.promises().reduces(dtype, op)) continue;
        const Tensor tensor{memory.data(), 4, dtype};
        const absl::Status status = AllReduce(communicator, tensor, tensor, op).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << dtype << ' ' << op;
        EXPECT_NE(status.message().find(NameOf(dtype)), absl::string_view::npos) << status;
        EXPECT_NE(status.message().find(NameOf(op)), absl::string_view::npos) << status;
      }
    }
  });
  world.ExpectUsable();
}

// A mebibyte and a bit: more than any block of a kernel, and no multiple of one. A fourth shows the
// same where each such tensor takes seconds.
constexpr uint64_t kLargeCount = kSanitized ? 65539 : 262147;
constexpr uint64_t kMediumCount = kSanitized ? 9001 : 70001;

void RunLarge(TransportFixtureFactory factory, int32_t world_size,
              const std::vector<Placement>& placements) {
  TestWorld world(factory, world_size, size_t{24} << 20);
  for (OperationKind kind : DataKinds()) {
    if (!world.promises().runs(kind)) continue;
    for (Placement placement : placements) {
      ExchangeSpec spec;
      spec.kind = kind;
      spec.count = kLargeCount;
      spec.placement = placement;
      spec.offset_count = 3;
      spec.seed = 7;
      EXPECT_TRUE(world.RunExchanges({spec}));
      if (!HasInPlaceForm(kind)) continue;
      spec.in_place = true;
      EXPECT_TRUE(world.RunExchanges({spec}));
    }
  }
}

TEST_P(TransportConformanceTest, LargeTensorsOnTwoRanks) {
  RunLarge(GetParam(), 2, {Placement::kRegion, Placement::kPrivate, Placement::kMixed});
}
TEST_P(TransportConformanceTest, LargeTensorsOnThreeRanks) {
  RunLarge(GetParam(), 3, {Placement::kMixed});
}

// Large enough that the ranks are at different places while they work.
TEST_P(TransportConformanceTest, LargeTensorsOfEveryReducedType) {
  TestWorld world(GetParam(), 2, size_t{8} << 20);
  for (int number = 0; number < kDTypeCount; ++number) {
    ExchangeSpec spec;
    spec.dtype = static_cast<DType>(number);
    spec.op = spec.dtype == DType::kBool ? ReduceOp::kSum : ReduceOp::kAvg;
    spec.count = kMediumCount;
    if (!world.promises().reduces(spec.dtype, spec.op)) continue;
    EXPECT_TRUE(world.RunExchanges({spec}));
  }
}

TEST_P(TransportConformanceTest, ManyOperationsInFlight) {
  TestWorld world(GetParam(), 3, size_t{8} << 20);
  std::vector<ExchangeSpec> specs;
  for (size_t i = 0; i < 120; ++i) {  // a shift is two operations
    ExchangeSpec spec;
    spec.kind = i % 5 == 0 ? OperationKind::kSend : OperationKind::kAllReduce;
    spec.count = 1 + i * 7;
    spec.seed = i;
    specs.push_back(spec);
  }
  EXPECT_TRUE(world.RunExchanges(specs));
}

TEST_P(TransportConformanceTest, MoreRanksThanCores) {
  // Each rank may be a process worth of threads, all with calls under way to one coordinator
  // (//backend/link); the wake-ups of 24 keep a core busy under the thread sanitizer.
  TestWorld world(GetParam(), kSanitized ? 8 : 24);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    std::vector<ExchangeSpec> specs(3);
    specs[0].count = 97;
    specs[1].kind = OperationKind::kSend;
    specs[1].step = 5;
    specs[2].kind = OperationKind::kAllGather;
    for (ExchangeSpec& spec : specs) spec.seed = seed;
    ASSERT_TRUE(world.RunExchanges(specs));
  }
}

}  // namespace
}  // namespace pelton::conformance
