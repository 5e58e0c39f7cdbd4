#include "comm/transport/conformance/exchange.h"

#include <cstring>

#include "comm/transport/conformance/rank_exchange.h"
#include "comm/transport/conformance/rounding.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::conformance {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Ints(const std::vector<std::byte>& bytes) {
  std::vector<int32_t> values(bytes.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// One element per chunk on two ranks; the inputs' values are random.
Exchange Small(OperationKind kind) {
  ExchangeSpec spec;
  spec.kind = kind;
  spec.dtype = DType::kInt32;
  spec.op = ReduceOp::kBitXor;
  spec.root = 1;
  return MakeExchange(spec, WorldSize(2));
}

struct SmallInts {
  explicit SmallInts(OperationKind kind) {
    const Exchange exchange = Small(kind);
    for (int rank = 0; rank < 2; ++rank) {
      in[rank] = Ints(exchange.inputs[static_cast<size_t>(rank)]);
      out[rank] = Ints(exchange.expected[static_cast<size_t>(rank)]);
    }
  }
  std::vector<int32_t> in[2];
  std::vector<int32_t> out[2];
};

TEST(ExchangeTest, ExpectsReductions) {
  const SmallInts all(OperationKind::kAllReduce);
  EXPECT_THAT(all.out[0], ElementsAre(all.in[0][0] ^ all.in[1][0]));
  EXPECT_EQ(all.out[0], all.out[1]);
  const SmallInts reduce(OperationKind::kReduce);
  EXPECT_THAT(reduce.out[0], IsEmpty());
  EXPECT_THAT(reduce.out[1], ElementsAre(reduce.in[0][0] ^ reduce.in[1][0]));
  const SmallInts scatter(OperationKind::kReduceScatter);
  EXPECT_THAT(scatter.out[1], ElementsAre(scatter.in[0][1] ^ scatter.in[1][1]));
}

TEST(ExchangeTest, ExpectsMoves) {
  const SmallInts gather(OperationKind::kAllGather);
  EXPECT_THAT(gather.out[0], ElementsAre(gather.in[0][0], gather.in[1][0]));
  const SmallInts to_root(OperationKind::kGather);
  EXPECT_THAT(to_root.out[0], IsEmpty());
  EXPECT_THAT(to_root.out[1], ElementsAre(to_root.in[0][0], to_root.in[1][0]));
  const SmallInts broadcast(OperationKind::kBroadcast);
  EXPECT_EQ(broadcast.out[0], broadcast.in[1]);
  const SmallInts scatter(OperationKind::kScatter);
  EXPECT_THAT(scatter.out[0], ElementsAre(scatter.in[1][0]));
  const SmallInts all(OperationKind::kAllToAll);
  EXPECT_THAT(all.out[1], ElementsAre(all.in[0][1], all.in[1][1]));
  const SmallInts shift(OperationKind::kSend);
  EXPECT_EQ(shift.out[1], shift.in[0]);
}

TEST(ExchangeTest, InputsDifferByRankAndSeed) {
  ExchangeSpec spec;
  spec.count = 100;
  const Exchange first = MakeExchange(spec, WorldSize(2));
  EXPECT_NE(first.inputs[0], first.inputs[1]);
  EXPECT_EQ(first.inputs, MakeExchange(spec, WorldSize(2)).inputs);
  spec.seed = 1;
  EXPECT_NE(first.inputs, MakeExchange(spec, WorldSize(2)).inputs);
}

TEST(DifferenceOfElementsTest, SeesOneBitButTakesNansForEqual) {
  const float values[] = {1, -0.0f};
  std::vector<std::byte> expected(8);
  std::memcpy(expected.data(), values, 8);
  float found[] = {1, -0.0f};
  const auto* bytes = reinterpret_cast<const std::byte*>(found);
  EXPECT_EQ(DifferenceOfElements(DType::kFloat32, expected, bytes), "");
  found[1] = 0.0f;
  EXPECT_NE(DifferenceOfElements(DType::kFloat32, expected, bytes), "");
  const uint32_t nans[] = {0x7fc00000, 0xffc00001};
  std::memcpy(expected.data(), &nans[0], 4);
  std::memcpy(&found[0], &nans[1], 4);
  found[1] = -0.0f;
  EXPECT_EQ(DifferenceOfElements(DType::kFloat32, expected, bytes), "");
}

TEST(ArenaTest, SeesWritesBesideATensor) {
  for (bool is_region : {false, true}) {
    Arena arena(4096, is_region);
    std::byte* tensor = arena.Allocate(100, 4);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor) % 64, 4);
    EXPECT_EQ(arena.CheckGuards(), "");
    tensor[100] = std::byte{0};
    EXPECT_NE(arena.CheckGuards(), "");
    arena.Reset();
    tensor = arena.Allocate(100, 0);
    tensor[-1] = std::byte{0};
    EXPECT_NE(arena.CheckGuards(), "");
  }
}

// Two ranks' sums with `change` added to the first element of what one of them got.
std::string DifferenceAfter(DType dtype, ReduceOp op, float change) {
  ExchangeSpec spec;
  spec.dtype = dtype;
  spec.op = op;
  spec.count = 1;
  spec.seed = 3;
  const Exchange exchange = MakeExchange(spec, WorldSize(2));
  std::vector<std::byte> got = exchange.expected[0];
  float value;
  std::memcpy(&value, got.data(), sizeof(value));
  value += change;
  std::memcpy(got.data(), &value, sizeof(value));
  return DifferenceBeyondRounding(exchange, exchange.expected[0], got.data());
}

TEST(DifferenceBeyondRoundingTest, ToleratesTheLastBitsOfASum) {
  EXPECT_EQ(DifferenceAfter(DType::kFloat32, ReduceOp::kSum, 1e-6f), "");
  EXPECT_NE(DifferenceAfter(DType::kFloat32, ReduceOp::kSum, 1e-4f), "");
  EXPECT_NE(DifferenceAfter(DType::kComplex64, ReduceOp::kSum, 1e-4f), "");
  EXPECT_NE(DifferenceAfter(DType::kFloat32, ReduceOp::kMax, 1e-6f), "");
}

}  // namespace
}  // namespace pelton::conformance
