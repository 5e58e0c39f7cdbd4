// Conformance under sequences of operations that a seed chooses.
#include <random>
#include <vector>

#include "comm/transport/conformance/test_world.h"
#include "core/base/sanitizer.h"

namespace pelton::conformance {
namespace {

constexpr uint64_t kSequences = kSanitized ? 100 : 1000;
constexpr int32_t kRanks = 3;

ExchangeSpec RandomSpec(std::mt19937_64& random, const TransportPromises& promises) {
  auto below = [&random](uint64_t bound) { return random() % bound; };
  ExchangeSpec spec;
  do {
    spec.kind = DataKinds()[below(DataKinds().size())];
  } while (!promises.runs(spec.kind));
  spec.dtype = static_cast<DType>(below(kDTypeCount));
  std::vector<ReduceOp> ops = OpsOf(spec.dtype);
  std::erase_if(ops, [&](ReduceOp op) { return !promises.reduces(spec.dtype, op); });
  if (ops.empty()) {
    spec.dtype = DType::kFloat32;
    ops = {ReduceOp::kSum};
  }
  spec.op = ops[below(ops.size())];
  spec.root = static_cast<int32_t>(below(kRanks));
  spec.step = 1 + static_cast<int32_t>(below(kRanks - 1));
  spec.tag = promises.has_tags ? static_cast<int32_t>(below(2)) : 0;
  spec.count = below(8) == 0 ? below(3000) : below(40);
  spec.in_place = HasInPlaceForm(spec.kind) && below(2) == 0;
  spec.placement = static_cast<Placement>(below(3));
  spec.offset_count = below(5);
  spec.seed = random();
  return spec;
}

TEST_P(TransportConformanceTest, RandomSequencesGiveTheReference) {
  TestWorld world(GetParam(), kRanks, size_t{8} << 20);
  for (uint64_t seed = 1; seed <= kSequences; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<ExchangeSpec> specs;
    for (uint64_t length = 1 + random() % 7; length > 0; --length) {
      specs.push_back(RandomSpec(random, world.promises()));
    }
    ASSERT_TRUE(world.RunExchanges(specs)) << "sequence of seed " << seed;
  }
}

}  // namespace
}  // namespace pelton::conformance
